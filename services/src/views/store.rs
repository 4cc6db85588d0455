//! API views of the block store.

use api::store::{
    AmountView, CheckView, FaultView, FiguresView, FindingView, ImportedView, IndexView, LackingPinView, PinView,
    ProgressView, SegmentsView,
};
use cache::disk::offline::{Amount, SegmentsAmount};
use cache::{CheckReport, Fault, Figures, Finding, ImportSummary, IncompletePin, Inconsistencies, PinSummary};
use cache::{ScrubProgress, ScrubReport};
use content::Cid;

/// The amounts of stored content.
pub fn figures(figures: &Figures) -> FiguresView {
    FiguresView {
        all: amount(figures.all()),
        pinned: amount(figures.pinned),
        cached: amount(figures.cached),
        raw: amount(figures.raw),
        frames: amount(figures.framed),
        envelopes: amount(figures.enveloped),
        pinned_segments: segments(figures.pinned_segments),
        cached_segments: segments(figures.cached_segments),
        pins: figures.pins,
        partial_pins: figures.partial_pins,
    }
}

fn amount(Amount { blocks, block_bytes, stored_bytes }: Amount) -> AmountView {
    AmountView { blocks, block_bytes, stored_bytes }
}

fn segments(SegmentsAmount { segments, bytes, dead_bytes }: SegmentsAmount) -> SegmentsView {
    SegmentsView { segments, bytes, dead_bytes }
}

/// The progress of a check.
pub fn progress(&ScrubProgress { blocks, bytes, damaged, unreadable }: &ScrubProgress) -> ProgressView {
    ProgressView { blocks, bytes, damaged, unreadable }
}

/// A corrupt block.
pub fn finding(finding: &Finding) -> FindingView {
    let fault = match finding.fault {
        Fault::Damaged => FaultView::Damaged,
        Fault::Unreadable => FaultView::Unreadable,
    };
    FindingView { fault, cid: finding.cid.to_string() }
}

fn lacking_pin(pin: &IncompletePin) -> LackingPinView {
    let IncompletePin { root, name, missing, withheld, blocks } = pin;
    let (root, name) = (root.to_string(), name.clone());
    LackingPinView { root, name, missing: *missing, withheld: *withheld, blocks: *blocks }
}

fn index(&Inconsistencies { blocks, places, segments, files }: &Inconsistencies) -> IndexView {
    IndexView { blocks, places, segments, files }
}

/// The result of a scrub in a store that a gateway uses.
pub fn scrubbed(report: &ScrubReport) -> CheckView {
    CheckView {
        clean: report.progress.is_clean() && !report.lacking.iter().any(IncompletePin::is_damaged),
        checked: progress(&report.progress),
        pins_lacking_blocks: report.lacking.iter().map(lacking_pin).collect(),
        index_disagreements: None,
        pins_missing: Vec::new(),
        unclaimed_blocks: 0,
    }
}

/// The result of a check of a store without a gateway, with the roots in the pin metadata store that the store lacks.
pub fn checked(report: &CheckReport, missing: Vec<Cid>) -> CheckView {
    CheckView {
        clean: report.is_clean() && missing.is_empty(),
        checked: progress(&report.progress),
        pins_lacking_blocks: report.lacking.iter().map(lacking_pin).collect(),
        index_disagreements: Some(index(&report.index)),
        pins_missing: missing.iter().map(Cid::to_string).collect(),
        unclaimed_blocks: report.unclaimed,
    }
}

/// A created pin.
pub fn pin(pin: &PinSummary) -> PinView {
    PinView { root: pin.root.to_string(), name: pin.name.clone(), blocks: pin.blocks, bytes: pin.bytes }
}

/// The result of an import.
pub fn imported(ImportSummary { pins, blocks, bytes }: &ImportSummary) -> ImportedView {
    ImportedView { pins: pins.iter().map(pin).collect(), blocks: *blocks, bytes: *bytes }
}
