//! Path arguments, and their resolution, by the functions of the public gateway.
//!
//! An argument is a path (`/ipfs/CID/…`, `/ipns/NAME/…`) or the part after `/ipfs/`, and is not percent-encoded.

use crate::kubo_rpc::Rpc;
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::problem::RpcError;
use content::names::NameError;
use content::path::{Namespace, PathError, Root};
use content::walk::Resolved;
use content::{BlockSource, Cid, ContentPath, SourceError, Verdict, Work};
use gateway::errors::Problem;
use gateway::represent::whole::Whole;
use gateway::request::RequestError;
use gateway::resolve::source::RootSource;
use gateway::resolve::{self, Target};
use std::sync::Arc;

/// The maximum number of segments of a path.
const DEPTH_MAX: usize = 256;

/// Parses an argument.
///
/// # Errors
/// The argument is not a path.
pub fn parse(argument: &str) -> Result<ContentPath, RpcError> {
    let read = match Namespace::split(argument) {
        Some(_) => ContentPath::read(argument, DEPTH_MAX),
        None if argument.starts_with('/') => Err(PathError::Namespace),
        None => ContentPath::read(&format!("/ipfs/{argument}"), DEPTH_MAX),
    };
    read.map_err(|error| Problem::from(RequestError::Path { path: argument.to_owned(), error }).into())
}

/// A resolved path, with the source of its blocks.
pub struct ResolvedPath {
    /// The blocks below the path's root.
    pub source: Arc<RootSource>,
    /// The block at its end.
    pub resolved: Resolved,
    /// The segments of the path.
    pub segments: Vec<String>,
}

impl ResolvedPath {
    /// The block at the path's end.
    pub fn cid(&self) -> &Cid {
        self.resolved.block.cid()
    }

    /// The source of the DAG below the path's end, if the policy allows to serve it as a whole.
    ///
    /// # Errors
    /// The policy withholds content below the path's end.
    pub async fn below(&self) -> Result<Arc<dyn BlockSource>, RpcError> {
        let (source, policy) = (Arc::clone(&self.source), Arc::clone(self.source.policy_handle()));
        Ok(Arc::new(Whole::below(source, policy, &self.resolved, &self.segments).await?))
    }

    /// Whether the policy allows to read the entry `name` below the path's end.
    pub fn may_be_read(&self, name: &str) -> bool {
        self.resolved.check_further(self.source.policy(), &self.segments, name).is_ok()
    }

    /// Checks that the path ends at a block and not inside one.
    ///
    /// # Errors
    /// The path ends inside a block.
    pub fn whole(self) -> Result<Self, RpcError> {
        match self.resolved.remainder.is_empty() {
            true => Ok(self),
            false => Err(Problem::InsideDocument { cid: *self.cid() }.into()),
        }
    }
}

impl Rpc {
    /// Resolves the name of a path, if it has one.
    ///
    /// # Errors
    /// The argument is not a path, its name cannot be resolved, or the policy withholds it.
    pub async fn target(&self, argument: &str) -> Result<Target, RpcError> {
        let path = parse(argument)?;
        self.check_entry(&path)?;
        let target = Target::of(path, &*self.names, &*self.policy).await?;
        match self.policy.check(&target.root) {
            Verdict::Allow => Ok(target),
            verdict => Err(Problem::Refused { cid: target.root, verdict }.into()),
        }
    }

    /// If the policy is an allowlist, checks that it lists the path.
    fn check_entry(&self, path: &ContentPath) -> Result<(), RpcError> {
        if !self.policy.serves_only_listed() {
            return Ok(());
        }
        let below = path.segments.join("/");
        match (self.policy.check_entry(&path.root, &below), &path.root) {
            (Verdict::Allow, _) => Ok(()),
            (verdict, Root::Cid(cid)) => Err(SourceError::refused(cid, &below, verdict).into()),
            (verdict, Root::Name(name)) => Err(NameError::Withheld { name: name.clone(), path: below, verdict }.into()),
        }
    }

    /// Resolves a path to its last block.
    ///
    /// # Errors
    /// The path does not exist, or a block cannot be fetched.
    pub async fn find(&self, call: &Call, argument: &str) -> Result<ResolvedPath, RpcError> {
        let target = self.target(argument).await?;
        let work = Work::new(self.limits.work_steps_max);
        let source = RootSource::within(&self.sources, target.root, call.client.into(), call.offline, work);
        let resolved = resolve::walk(&source, &target).await?;
        Ok(ResolvedPath { source, resolved, segments: target.segments })
    }

    /// The CID at the end of a path. The block of a bare CID is not read.
    ///
    /// # Errors
    /// Like [`Rpc::find`].
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
