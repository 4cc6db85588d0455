//! The known providers of a root, its Bitswap session, and the history of its provider search.

use crate::operations::Operations;
use api::explain::{
    AskedView, DialView, FoundView, MemberView, NamedView, NetworkView, ProviderView, SearchView, SessionView, WantView,
};
use api::text::seconds;
use content::Cid;
use libp2p::{Multiaddr, PeerId};
use p2p_bridge::bitswap::client::inspection::{MemberState, SearchPhase, SessionState, WantState};
use p2p_bridge::discovery::history::{ProviderRecord, SearchRecord};

impl Operations {
    /// The network's view of a DAG; none if the node is offline.
    pub(super) async fn explain_network(&self, root: &Cid) -> Option<NetworkView> {
        let bridge = self.parts().bridge.as_ref()?;
        let state = bridge.inspect(root).await?;
        Some(NetworkView {
            peers: bridge.load().await.peers,
            session: state.session.as_ref().map(session),
            search: state.search.as_ref().map(search),
            remembered_providers: state.remembered.into_iter().map(provider).collect(),
        })
    }
}

fn provider((peer, addresses): (PeerId, Vec<Multiaddr>)) -> ProviderView {
    ProviderView { peer_id: peer.to_string(), addresses: addresses.iter().map(ToString::to_string).collect() }
}

fn session(state: &SessionState) -> SessionView {
    let phase = match state.search {
        SearchPhase::Idle => "idle",
        SearchPhase::Running => "running",
        SearchPhase::Done(_) => "done",
    };
    SessionView {
        members: state.members.iter().map(member).collect(),
        providers: state.providers,
        search: phase.to_owned(),
        asked: state.asked,
        answered: state.answered,
        wanted: state.wanted,
        wants: state.wants.iter().map(want).collect(),
        idle_seconds: seconds(state.idle_for),
    }
}

fn member(state: &MemberState) -> MemberView {
    MemberView {
        peer_id: state.peer.to_string(),
        gave: state.gave,
        owes_blocks: state.owes_blocks,
        response_seconds: state.response.map(seconds),
        bytes_per_second: state.bytes_per_second,
        is_silent: state.is_silent,
    }
}

fn want(state: &WantState) -> WantView {
    WantView {
        cid: state.cid.to_string(),
        waited_seconds: seconds(state.waited),
        debtors: state.debtors.iter().map(ToString::to_string).collect(),
        probed: state.probed,
        denied: state.denied,
    }
}

fn search(record: &SearchRecord) -> SearchView {
    let asked = record.asked.iter();
    SearchView {
        seconds_ago: seconds(record.began.elapsed()),
        seconds: record.took.map(seconds),
        asked: asked
            .map(|(whom, took)| AskedView { whom: whom.name().to_owned(), seconds: took.map(seconds) })
            .collect(),
        providers: record.providers.iter().map(found).collect(),
        further: record.further,
    }
}

fn found(record: &ProviderRecord) -> FoundView {
    let named = record.named.iter();
    FoundView {
        peer_id: record.peer.to_string(),
        named_by: named
            .map(|(whom, after)| NamedView { whom: whom.name().to_owned(), seconds: seconds(*after) })
            .collect(),
        was_connected: record.was_connected,
        dial: record.dial.as_ref().map(|dial| {
            let ended = dial.ended.as_ref();
            DialView {
                after_seconds: seconds(dial.after),
                seconds: ended.map(|(took, _)| seconds(*took)),
                error: ended.and_then(|(_, outcome)| outcome.as_ref().err().cloned()),
            }
        }),
        proved_seconds: record.proved.map(seconds),
    }
}
