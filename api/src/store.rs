//! The block store: figures, checks, imports.

use crate::text::{count, size};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Write as _;
use utoipa::ToSchema;

/// Which release answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionView {
    /// Such as "0.1.0".
    pub version: String,
}

/// Blocks of one sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AmountView {
    /// How many.
    pub blocks: u64,
    /// Their bytes, as blocks.
    pub block_bytes: u64,
    /// Their bytes, as they are stored.
    pub stored_bytes: u64,
}

/// The segment files of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentsView {
    /// How many.
    pub segments: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Those of them that nothing needs any more.
    pub dead_bytes: u64,
}

/// What a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FiguresView {
    /// Blocks of every sort.
    pub all: AmountView,
    /// Blocks that a pin protects.
    pub pinned: AmountView,
    /// Blocks that may be evicted.
    pub cached: AmountView,
    /// Blocks that are stored as they are.
    pub raw: AmountView,
    /// Blocks that are stored as one zstd frame.
    pub frames: AmountView,
    /// Leaves of which the file's bytes are a zstd frame.
    pub envelopes: AmountView,
    /// The segments of pinned blocks, in a store that has segments.
    pub pinned_segments: SegmentsView,
    /// The segments of cached blocks.
    pub cached_segments: SegmentsView,
    /// Pins that are complete.
    pub pins: u64,
    /// Pins that are not.
    pub partial_pins: u64,
}

impl FiguresView {
    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut amount = |what: &str, amount: AmountView| {
            let AmountView { blocks, block_bytes, stored_bytes } = amount;
            _ = writeln!(out, "{what:12} {blocks:>12}   {:>10}, stored in {}", size(block_bytes), size(stored_bytes));
        };
        amount("blocks", self.all);
        amount("  pinned", self.pinned);
        amount("  cached", self.cached);
        amount("  raw", self.raw);
        amount("  frames", self.frames);
        amount("  envelopes", self.envelopes);
        let AmountView { block_bytes, stored_bytes, .. } = self.all;
        let saved = block_bytes.saturating_sub(stored_bytes);
        let percent = 100.0 * saved as f64 / block_bytes.max(1) as f64;
        _ = writeln!(out, "zstd saves {} ({percent:.1} %)", size(saved));
        let has_segments = self.pinned_segments.segments + self.cached_segments.segments > 0;
        let segments = [("pinned", self.pinned_segments), ("cached", self.cached_segments)];
        for (what, amount) in segments.into_iter().filter(|_| has_segments) {
            let SegmentsView { segments, bytes, dead_bytes } = amount;
            _ = writeln!(
                out,
                "{} of {what} blocks, {}, {} of it dead",
                count(segments, "segment"),
                size(bytes),
                size(dead_bytes)
            );
        }
        _ = writeln!(out, "complete pins {}, partial pins {}", self.pins, self.partial_pins);
        out
    }
}

/// How far a check has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProgressView {
    /// Blocks that were checked.
    pub blocks: u64,
    /// Their bytes on the disk.
    pub bytes: u64,
    /// Blocks whose value is not what was written, or not what their hash says.
    pub damaged: u64,
    /// Blocks that the system refused to read.
    pub unreadable: u64,
}

/// What is wrong with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FaultView {
    /// Its value is not what was written, or not what its hash says.
    Damaged,
    /// The system refused to read it.
    Unreadable,
}

/// A block that did not pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FindingView {
    /// What is wrong with it.
    pub fault: FaultView,
    /// Its name, with the codec of raw blocks: the store does not know which codec it is asked for by.
    pub cid: String,
}

impl FindingView {
    /// A line for people.
    pub fn line(&self) -> String {
        let word = match self.fault {
            FaultView::Damaged => "damaged",
            FaultView::Unreadable => "unreadable",
        };
        format!("{word} {}\n", self.cid)
    }
}

/// A pin of which blocks are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LackingPinView {
    /// The root of the DAG.
    pub root: String,
    /// What the operator calls it.
    pub name: Option<String>,
    /// How many of its blocks are not here, or are damaged.
    pub missing: u64,
    /// How many it has.
    pub blocks: u64,
}

/// Where an index does not agree with itself or with the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IndexView {
    /// Blocks.
    pub blocks: u64,
    /// Places.
    pub places: u64,
    /// Segments.
    pub segments: u64,
    /// Files.
    pub files: u64,
}

impl IndexView {
    fn total(self) -> u64 {
        self.blocks + self.places + self.segments + self.files
    }
}

/// What a check came to, its findings aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckView {
    /// Whether nothing is wrong.
    pub clean: bool,
    /// What was checked.
    #[serde(flatten)]
    pub checked: ProgressView,
    /// Pins that lack blocks, damaged ones included.
    pub pins_lacking_blocks: Vec<LackingPinView>,
    /// The index, which is looked at while no gateway runs.
    pub index_disagreements: Option<IndexView>,
    /// Roots that the list of pins says are pinned, and of which the store has no pin. Looked for while no gateway runs.
    pub pins_missing: Vec<String>,
    /// Blocks that are kept although no pin is known to have them: index and pin journal were damaged at once.
    pub unclaimed_blocks: u64,
}

impl CheckView {
    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for LackingPinView { root, name, missing, blocks } in &self.pins_lacking_blocks {
            let name = name.as_ref().map(|name| format!(" ({name:?})")).unwrap_or_default();
            _ = writeln!(out, "pin {root}{name} lacks {missing} of {}", count(*blocks, "block"));
        }
        for root in &self.pins_missing {
            _ = writeln!(
                out,
                "pin {root} is in the list of pins and not in the store: the gateway pins it again when it runs"
            );
        }
        if self.unclaimed_blocks > 0 {
            let blocks = count(self.unclaimed_blocks, "block");
            _ = writeln!(
                out,
                "kept although no pin is known to have them: {blocks}. When \"causeway pin ls\" shows every pin that you \
                 expect as pinned, \"causeway store repair --release-unclaimed\" lets go of the rest"
            );
        }
        if let Some(index) = self.index_disagreements.filter(|index| index.total() > 0) {
            let IndexView { blocks, places, segments, files } = index;
            _ = writeln!(
                out,
                "rows of the index that disagree: blocks {blocks}, places {places}, segments {segments}, files {files}"
            );
        }
        let ProgressView { blocks, bytes, damaged, unreadable } = self.checked;
        _ = writeln!(
            out,
            "checked {}, {}: {damaged} damaged, {unreadable} unreadable",
            count(blocks, "block"),
            size(bytes)
        );
        out
    }

    /// With the findings, for scripts.
    pub fn json(&self, findings: &[FindingView]) -> Value {
        let cids = |fault| {
            let found = findings.iter().filter(|finding| finding.fault == fault);
            found.map(|finding| finding.cid.as_str()).collect::<Vec<_>>()
        };
        json!({
            "clean": self.clean,
            "blocks": self.checked.blocks,
            "bytes": self.checked.bytes,
            "damaged": cids(FaultView::Damaged),
            "unreadable": cids(FaultView::Unreadable),
            "pins_lacking_blocks": self.pins_lacking_blocks,
            "index_disagreements": self.index_disagreements,
            "pins_missing": self.pins_missing,
            "unclaimed_blocks": self.unclaimed_blocks,
        })
    }
}

/// A line of the answer to a request for a check. The last is a report or an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckLine {
    /// How far it has come.
    Progress(ProgressView),
    /// A block that did not pass.
    Finding(FindingView),
    /// What it came to.
    Report(CheckView),
    /// Why it did not come to its end.
    Error(String),
}

/// What compacting a store gave back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompactedView {
    /// What the blocks took before, in bytes.
    pub bytes_before: u64,
    /// What they take now.
    pub bytes_after: u64,
}

impl CompactedView {
    /// For people.
    pub fn text(self) -> String {
        format!("{} before, {} now\n", size(self.bytes_before), size(self.bytes_after))
    }
}

/// A pin that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PinView {
    /// The root of the DAG.
    pub root: String,
    /// What the operator calls it.
    pub name: Option<String>,
    /// Its distinct blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What an import did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportedView {
    /// The pin of each distinct root, in the archive's order.
    pub pins: Vec<PinView>,
    /// Blocks in the archive, repeated ones included.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl ImportedView {
    /// For people.
    pub fn text(&self) -> String {
        let mut out: String = self.pins.iter().map(|pin| format!("pinned {}\n", pin.root)).collect();
        _ = writeln!(out, "imported {}, {}", count(self.blocks, "block"), count(self.bytes, "byte"));
        out
    }
}

/// Asks for blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HaveQuestion {
    /// Which blocks.
    #[schema(max_items = 4096)]
    pub cids: Vec<String>,
}

/// Which of them are here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HaveView {
    /// For each block of the question, in its order, whether it is here.
    pub held: Vec<bool>,
}

/// The media type of archives (<https://www.iana.org/assignments/media-types/application/vnd.ipld.car>).
pub const CAR: &str = "application/vnd.ipld.car";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_check_are_objects_with_one_name() {
        let progress = ProgressView { blocks: 3, bytes: 5, damaged: 1, unreadable: 0 };
        let finding = FindingView { fault: FaultView::Damaged, cid: "bafy".to_owned() };
        let report = CheckView {
            clean: false,
            checked: progress,
            pins_lacking_blocks: Vec::new(),
            index_disagreements: None,
            pins_missing: vec!["bafy".to_owned()],
            unclaimed_blocks: 2,
        };
        let table = [
            (CheckLine::Progress(progress), r#"{"progress":{"blocks":3,"bytes":5,"damaged":1,"unreadable":0}}"#),
            (CheckLine::Finding(finding), r#"{"finding":{"fault":"damaged","cid":"bafy"}}"#),
            (
                CheckLine::Report(report),
                "{\"report\":{\"clean\":false,\"blocks\":3,\"bytes\":5,\"damaged\":1,\"unreadable\":0,\
                 \"pins_lacking_blocks\":[],\"index_disagreements\":null,\"pins_missing\":[\"bafy\"],\"unclaimed_blocks\":2}}",
            ),
            (CheckLine::Error("it ended".to_owned()), r#"{"error":"it ended"}"#),
        ];
        for (line, expected) in table {
            assert_eq!(serde_json::to_string(&line).expect("JSON"), expected);
            assert_eq!(serde_json::from_str::<CheckLine>(expected).expect("reads"), line);
        }
    }
}
