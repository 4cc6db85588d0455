//! Arguments as paths, and what they lead to, by the same steps as the public gateway's.
//!
//! An argument is a path (`/ipfs/CID/…`, `/ipns/NAME/…`) or what follows `/ipfs/` in one, and is not percent-encoded.

use crate::kubo_rpc::Rpc;
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::problem::RpcError;
use content::names::NameError;
use content::path::{Namespace, PathError, Root};
use content::walk::Resolved;
use content::{BlockSource, Cid, ContentPath, Verdict, Work};
use gateway::errors::Problem;
use gateway::represent::whole::Whole;
use gateway::request::RequestError;
use gateway::resolve::source::RootSource;
use gateway::resolve::{self, Target};
use std::sync::Arc;

/// How many segments are followed.
const DEPTH_MAX: usize = 256;

/// Reads an argument.
///
/// # Errors
/// That it is no path.
pub fn parse(argument: &str) -> Result<ContentPath, RpcError> {
    let read = match Namespace::split(argument) {
        Some(_) => ContentPath::read(argument, DEPTH_MAX),
        None if argument.starts_with('/') => Err(PathError::Namespace),
        None => ContentPath::read(&format!("/ipfs/{argument}"), DEPTH_MAX),
    };
    read.map_err(|error| Problem::from(RequestError::Path { path: argument.to_owned(), error }).into())
}

/// What a path leads to, and where its blocks come from.
pub struct Found {
    /// The blocks below the path's root.
    pub source: Arc<RootSource>,
    /// What stands at its end.
    pub resolved: Resolved,
    /// The names on the way.
    pub segments: Vec<String>,
}

impl Found {
    /// The block at the path's end.
    pub fn cid(&self) -> &Cid {
        self.resolved.block.cid()
    }

    /// The blocks of everything below the path's end, as far as all of it may be served.
    ///
    /// # Errors
    /// That something below it is withheld.
    pub async fn below(&self) -> Result<Arc<dyn BlockSource>, RpcError> {
        let (source, policy) = (Arc::clone(&self.source), Arc::clone(self.source.policy_handle()));
        Ok(Arc::new(Whole::below(source, policy, &self.resolved, &self.segments).await?))
    }

    /// Whether what has a name at the path's end is not withheld by that path.
    pub fn may_be_looked_at(&self, name: &str) -> bool {
        self.resolved.check_further(self.source.policy(), &self.segments, name).is_ok()
    }

    /// That the path ends with a block and not inside it.
    ///
    /// # Errors
    /// Where it ends.
    pub fn whole(self) -> Result<Self, RpcError> {
        match self.resolved.remainder.is_empty() {
            true => Ok(self),
            false => Err(Problem::InsideDocument { cid: *self.cid() }.into()),
        }
    }
}

impl Rpc {
    /// What a path means now.
    ///
    /// # Errors
    /// That it is no path, its name cannot be resolved, or it may not be served.
    pub async fn target(&self, argument: &str) -> Result<Target, RpcError> {
        let path = parse(argument)?;
        self.check_entry(&path)?;
        let target = Target::of(path, &*self.names, &*self.policy).await?;
        match self.policy.check(&target.root) {
            Verdict::Allow => Ok(target),
            verdict => Err(Problem::Refused { cid: target.root, verdict }.into()),
        }
    }

    /// Where only chosen content is served, what a path begins with has to be chosen.
    fn check_entry(&self, path: &ContentPath) -> Result<(), RpcError> {
        if !self.policy.serves_only_listed() {
            return Ok(());
        }
        match (self.policy.check_entry(&path.root, &path.segments.join("/")), &path.root) {
            (Verdict::Allow, _) => Ok(()),
            (verdict, Root::Cid(cid)) => Err(Problem::Refused { cid: *cid, verdict }.into()),
            (verdict, Root::Name(name)) => Err(NameError::Withheld { name: name.clone(), verdict }.into()),
        }
    }

    /// Follows a path to its last block.
    ///
    /// # Errors
    /// That it leads nowhere, or a block does not come.
    pub async fn find(&self, call: &Call, argument: &str) -> Result<Found, RpcError> {
        let target = self.target(argument).await?;
        let work = Work::new(self.limits.work_steps_max);
        let source = RootSource::within(&self.sources, target.root, call.client, call.offline, work);
        let resolved = resolve::walk(&source, &target).await?;
        Ok(Found { source, resolved, segments: target.segments })
    }

    /// The CID that a path leads to. A bare CID is not looked at.
    ///
    /// # Errors
    /// The same.
    pub async fn cid_of(&self, call: &Call, argument: &str) -> Result<Cid, RpcError> {
        let path = parse(argument)?;
        if let (Root::Cid(cid), true) = (&path.root, path.segments.is_empty()) {
            return Ok(*cid);
        }
        Ok(*self.find(call, argument).await?.whole()?.cid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_paths_or_what_follows_ipfs() {
        const CID: &str = "bafkqac3imvwgy3zao5xxe3de";
        let table = [
            (CID.to_owned(), Some(vec![])),
            (format!("{CID}/a b/c%20d"), Some(vec!["a b", "c%20d"])),
            (format!("/ipfs/{CID}/a/"), Some(vec!["a"])),
            ("/ipns/example.org/x".to_owned(), Some(vec!["x"])),
            (format!("/ipld/{CID}"), None),
            (format!("ipfs/{CID}"), None),
            (format!("/{CID}"), None),
            ("example.org".to_owned(), None),
            ("../etc".to_owned(), None),
            (String::new(), None),
        ];
        for (argument, expected) in table {
            let found = parse(&argument).map(|path| path.segments);
            match expected {
                Some(segments) => assert_eq!(
                    found.as_deref(),
                    Ok(&segments.iter().map(ToString::to_string).collect::<Vec<_>>()[..]),
                    "{argument}"
                ),
                None => assert_eq!(found.expect_err(&argument).status, 400, "{argument}"),
            }
        }
    }
}
