//! [`DagScope`] and [`ScopeOptions`]: the parameters that name a part of a DAG
//! (<https://specs.ipfs.tech/http-gateways/trustless-gateway/#dag-scope-request-query-parameter>).
//!
//! Non-goals: which blocks those are, which [`mod@crate::scope`] knows.

mod entity_bytes;

pub use self::entity_bytes::{EntityBytes, EntityBytesError};

/// The part of the DAG below the end of a path that is requested: the values of the `dag-scope` parameter, and
/// [`DagScope::File`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DagScope {
    /// The block only.
    Block,
    /// The blocks needed to read the file or to list the directory; for other blocks, the block only.
    Entity,
    /// The blocks needed to read the file; for other blocks, the block only. So the shards of a directory are left out,
    /// which a reader of the path does not list. `dag-scope` has no such value: [`DagScope::Entity`] includes it.
    File,
    /// The whole DAG.
    #[default]
    All,
}

impl DagScope {
    /// Whether it is a file, or a file or a directory, of which there can be a range of bytes.
    pub fn is_entity(self) -> bool {
        matches!(self, Self::Entity | Self::File)
    }

    /// The value of the `dag-scope` parameter for which a gateway sends all of its blocks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Entity | Self::File => "entity",
            Self::All => "all",
        }
    }

    /// Parses the value of the `dag-scope` parameter.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "block" => Some(Self::Block),
            "entity" => Some(Self::Entity),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}

/// The parameters of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScopeOptions {
    /// The part of the DAG.
    pub scope: DagScope,
    /// The range of bytes, if the entity is a file; only used with [`DagScope::Entity`] and [`DagScope::File`]. If the
    /// range is outside the file, only the first block is emitted.
    pub entity_bytes: Option<EntityBytes>,
    /// Whether duplicate blocks are emitted.
    pub duplicates: bool,
}
