//! The block store: statistics, checks, imports.

use crate::text::{count, size};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Write as _;
use utoipa::ToSchema;

/// The version of Causeway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionView {
    /// The version, such as "0.1.0".
    pub version: String,
    /// The content codings of uploads that it accepts, such as "zstd". Earlier versions have none.
    #[serde(default)]
    pub upload_codings: Vec<String>,
}

/// The number and size of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AmountView {
    /// The number of blocks.
    pub blocks: u64,
    /// Their uncompressed size, in bytes.
    pub block_bytes: u64,
    /// Their size on the disk, in bytes.
    pub stored_bytes: u64,
}

/// Segment files of pinned or of cached blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentsView {
    /// The number of segments.
    pub segments: u64,
    /// Their size, in bytes.
    pub bytes: u64,
    /// The part of their size that compaction can reclaim, in bytes.
    pub dead_bytes: u64,
}

/// The content of a block store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FiguresView {
    /// All blocks.
    pub all: AmountView,
    /// Blocks that a pin protects.
    pub pinned: AmountView,
    /// Blocks that may be evicted.
    pub cached: AmountView,
    /// Blocks that are stored uncompressed.
    pub raw: AmountView,
    /// Blocks that are stored as one zstd frame.
    pub frames: AmountView,
    /// Leaves whose file data are stored as a zstd frame.
    pub envelopes: AmountView,
    /// Segments of pinned blocks, if the store has segments.
    pub pinned_segments: SegmentsView,
    /// Segments of cached blocks, if the store has segments.
    pub cached_segments: SegmentsView,
    /// The number of complete pins.
    pub pins: u64,
    /// The number of partial pins.
    pub partial_pins: u64,
}

impl FiguresView {
    /// The statistics as text.
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

/// The progress of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProgressView {
    /// The number of checked blocks.
    pub blocks: u64,
    /// Their size on the disk, in bytes.
    pub bytes: u64,
    /// The number of blocks with a wrong checksum or hash.
    pub damaged: u64,
    /// The number of blocks that could not be read.
    pub unreadable: u64,
}

/// The fault of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FaultView {
    /// The checksum or the hash is wrong.
    Damaged,
    /// A read error.
    Unreadable,
}

/// A faulty block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FindingView {
    /// The fault.
    pub fault: FaultView,
    /// The CID, always with the codec `raw`, since the store does not record codecs.
    pub cid: String,
}

impl FindingView {
    /// The finding as a line of text.
    pub fn line(&self) -> String {
        let word = match self.fault {
            FaultView::Damaged => "damaged",
            FaultView::Unreadable => "unreadable",
        };
        format!("{word} {}\n", self.cid)
    }
}

/// A pin with missing blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LackingPinView {
    /// The root of the DAG.
    pub root: String,
    /// The name of the pin.
    pub name: Option<String>,
    /// The number of missing or damaged blocks.
    pub missing: u64,
    /// Those of them that are missing because the policy withholds them.
    #[serde(default)]
    pub withheld: u64,
    /// The total number of blocks.
    pub blocks: u64,
}

/// Rows of the index that are inconsistent with each other or with the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IndexView {
    /// Rows of blocks.
    pub blocks: u64,
    /// Rows of locations.
    pub places: u64,
    /// Rows of segments.
    pub segments: u64,
    /// Rows of files.
    pub files: u64,
}

impl IndexView {
    fn total(self) -> u64 {
        self.blocks + self.places + self.segments + self.files
    }
}

/// The result of a check, without its findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckView {
    /// Whether no fault was found. That withheld blocks are missing is none.
    pub clean: bool,
    /// The checked blocks.
    #[serde(flatten)]
    pub checked: ProgressView,
    /// Pins with missing or damaged blocks.
    pub pins_lacking_blocks: Vec<LackingPinView>,
    /// Inconsistencies of the index, which is checked only while no gateway runs.
    pub index_disagreements: Option<IndexView>,
    /// Roots that are pinned according to the pin metadata, but not in the store. Checked only while no gateway runs.
    pub pins_missing: Vec<String>,
    /// The number of blocks that are kept without a known pin, because the index and the pin journal were damaged at
    /// the same time.
    pub unclaimed_blocks: u64,
}

impl CheckView {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for LackingPinView { root, name, missing, withheld, blocks } in &self.pins_lacking_blocks {
            let name = name.as_ref().map(|name| format!(" ({name:?})")).unwrap_or_default();
            let blocks = count(*blocks, "block");
            _ = match (missing.saturating_sub(*withheld), *withheld) {
                (0, 1) => writeln!(out, "pin {root}{name}: 1 of {blocks} is withheld by a rule and not stored"),
                (0, _) => {
                    writeln!(out, "pin {root}{name}: {withheld} of {blocks} are withheld by rules and not stored")
                }
                (_, 0) => writeln!(out, "pin {root}{name} lacks {missing} of {blocks}"),
                (lost, _) => writeln!(out, "pin {root}{name} lacks {lost} of {blocks}; withheld by rules: {withheld}"),
            };
        }
        for root in &self.pins_missing {
            _ = writeln!(
                out,
                "pin {root} is in the pin metadata but not in the store: a running gateway pins it again"
            );
        }
        if self.unclaimed_blocks > 0 {
            let blocks = count(self.unclaimed_blocks, "block");
            _ = writeln!(
                out,
                "blocks that are kept without a known pin: {blocks}. When \"causeway pin ls\" lists all expected pins \
                 as pinned, run \"causeway store repair --release-unclaimed\" to unpin the rest"
            );
        }
        if let Some(index) = self.index_disagreements.filter(|index| index.total() > 0) {
            let IndexView { blocks, places, segments, files } = index;
            _ = writeln!(
                out,
                "inconsistent rows of the index: blocks {blocks}, places {places}, segments {segments}, files {files}"
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

    /// The report with the findings as JSON, for scripts.
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

/// A line of the response to a check. The last line is a report or an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckLine {
    /// The progress.
    Progress(ProgressView),
    /// A faulty block.
    Finding(FindingView),
    /// The report.
    Report(CheckView),
    /// The error that stopped the check.
    Error(String),
}

/// The result of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompactedView {
    /// The size of the blocks on the disk before, in bytes.
    pub bytes_before: u64,
    /// The size afterwards, in bytes.
    pub bytes_after: u64,
}

impl CompactedView {
    /// The result as text.
    pub fn text(self) -> String {
        format!("{} before, {} now\n", size(self.bytes_before), size(self.bytes_after))
    }
}

/// A new pin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PinView {
    /// The root of the DAG.
    pub root: String,
    /// The name of the pin.
    pub name: Option<String>,
    /// The number of distinct blocks.
    pub blocks: u64,
    /// Their size, in bytes.
    pub bytes: u64,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportedView {
    /// The pin of each distinct root, in the order of the archive.
    pub pins: Vec<PinView>,
    /// The number of blocks in the archive, duplicates included.
    pub blocks: u64,
    /// Their size, in bytes.
    pub bytes: u64,
}

impl ImportedView {
    /// The result as text.
    pub fn text(&self) -> String {
        let mut out: String = self.pins.iter().map(|pin| format!("pinned {}\n", pin.root)).collect();
        _ = writeln!(out, "imported {}, {}", count(self.blocks, "block"), count(self.bytes, "byte"));
        out
    }
}

/// Queries which blocks are stored locally.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HaveQuestion {
    /// The blocks.
    #[schema(max_items = 4096)]
    pub cids: Vec<String>,
}

/// The result of a query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HaveView {
    /// For each requested block, in the same order, whether it is stored locally.
    pub held: Vec<bool>,
}

/// The media type of CAR archives (<https://www.iana.org/assignments/media-types/application/vnd.ipld.car>).
pub const CAR: &str = "application/vnd.ipld.car";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn withheld_blocks_are_told_apart_from_missing_ones() {
        let table = [
            (2, 0, "pin bafy lacks 2 of 5 blocks"),
            (1, 1, "pin bafy: 1 of 5 blocks is withheld by a rule and not stored"),
            (2, 2, "pin bafy: 2 of 5 blocks are withheld by rules and not stored"),
            (3, 1, "pin bafy lacks 2 of 5 blocks; withheld by rules: 1"),
        ];
        for (missing, withheld, expected) in table {
            let pin = LackingPinView { root: "bafy".to_owned(), name: None, missing, withheld, blocks: 5 };
            let report = CheckView {
                clean: missing == withheld,
                checked: ProgressView::default(),
                pins_lacking_blocks: vec![pin],
                index_disagreements: None,
                pins_missing: Vec::new(),
                unclaimed_blocks: 0,
            };
            assert_eq!(report.text().lines().next(), Some(expected));
        }
    }

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
