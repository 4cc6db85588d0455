//! What is said of a store: as JSON, the same from the admin API and from `causeway store … --json`, and as text for people.

use cache::disk::offline::{Amount, SegmentsAmount};
use cache::{CheckReport, Disagreements, Fault, Figures, Finding, ImportSummary, LackingPin, PinSummary};
use cache::{ScrubProgress, ScrubReport};
use content::Cid;
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

impl From<Amount> for AmountView {
    fn from(Amount { blocks, block_bytes, stored_bytes }: Amount) -> Self {
        Self { blocks, block_bytes, stored_bytes }
    }
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

impl From<SegmentsAmount> for SegmentsView {
    fn from(SegmentsAmount { segments, bytes, dead_bytes }: SegmentsAmount) -> Self {
        Self { segments, bytes, dead_bytes }
    }
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

impl From<&Figures> for FiguresView {
    fn from(figures: &Figures) -> Self {
        Self {
            all: figures.all().into(),
            pinned: figures.pinned.into(),
            cached: figures.cached.into(),
            raw: figures.raw.into(),
            frames: figures.framed.into(),
            envelopes: figures.enveloped.into(),
            pinned_segments: figures.pinned_segments.into(),
            cached_segments: figures.cached_segments.into(),
            pins: figures.pins,
            partial_pins: figures.partial_pins,
        }
    }
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

impl From<&ScrubProgress> for ProgressView {
    fn from(progress: &ScrubProgress) -> Self {
        let ScrubProgress { blocks, bytes, damaged, unreadable } = *progress;
        Self { blocks, bytes, damaged, unreadable }
    }
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

impl From<&Finding> for FindingView {
    fn from(finding: &Finding) -> Self {
        let fault = match finding.fault {
            Fault::Damaged => FaultView::Damaged,
            Fault::Unreadable => FaultView::Unreadable,
        };
        Self { fault, cid: finding.cid.to_string() }
    }
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

impl From<&LackingPin> for LackingPinView {
    fn from(pin: &LackingPin) -> Self {
        let LackingPin { root, name, missing, blocks } = pin;
        Self { root: root.to_string(), name: name.clone(), missing: *missing, blocks: *blocks }
    }
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

impl From<&Disagreements> for IndexView {
    fn from(index: &Disagreements) -> Self {
        let Disagreements { blocks, places, segments, files } = *index;
        Self { blocks, places, segments, files }
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
    /// What was found in a store that no gateway runs on, and the roots that the list of pins has and the store has not.
    pub fn of_stopped(report: &CheckReport, missing: Vec<Cid>) -> Self {
        Self {
            clean: report.is_clean() && missing.is_empty(),
            checked: (&report.progress).into(),
            pins_lacking_blocks: report.lacking.iter().map(LackingPinView::from).collect(),
            index_disagreements: Some((&report.index).into()),
            pins_missing: missing.iter().map(Cid::to_string).collect(),
            unclaimed_blocks: report.unclaimed,
        }
    }

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

impl From<&ScrubReport> for CheckView {
    fn from(report: &ScrubReport) -> Self {
        Self {
            clean: report.progress.is_clean() && report.lacking.is_empty(),
            checked: (&report.progress).into(),
            pins_lacking_blocks: report.lacking.iter().map(LackingPinView::from).collect(),
            index_disagreements: None,
            pins_missing: Vec::new(),
            unclaimed_blocks: 0,
        }
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

impl From<&PinSummary> for PinView {
    fn from(pin: &PinSummary) -> Self {
        Self { root: pin.root.to_string(), name: pin.name.clone(), blocks: pin.blocks, bytes: pin.bytes }
    }
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

impl From<&ImportSummary> for ImportedView {
    fn from(ImportSummary { pins, blocks, bytes }: &ImportSummary) -> Self {
        Self { pins: pins.iter().map(PinView::from).collect(), blocks: *blocks, bytes: *bytes }
    }
}

impl ImportedView {
    /// For people.
    pub fn text(&self) -> String {
        let mut out: String = self.pins.iter().map(|pin| format!("pinned {}\n", pin.root)).collect();
        _ = writeln!(out, "imported {}, {}", count(self.blocks, "block"), count(self.bytes, "byte"));
        out
    }
}

/// A number of things for people.
pub fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A number of bytes for people.
pub fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, bits)| bytes >> bits > 0) {
        Some((unit, bits)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << bits) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        let table = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_500_000, "1.4 MiB"), (3 << 40, "3.0 TiB")];
        for (bytes, expected) in table {
            assert_eq!(size(bytes), expected);
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
