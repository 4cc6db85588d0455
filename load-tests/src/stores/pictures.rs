//! The figures as plots.

use super::adding::Question;
use super::figures::{Answer, Figures, Measure};
use crate::plot::{Axis, Marks, Panel, Plot, Scale};
use crate::report::Picture;
use anyhow::Result;

/// One for each question, and one for reading.
pub fn all(figures: &Figures) -> Result<Vec<Picture>> {
    let questions = Question::ALL.into_iter().filter(|question| answers(figures, *question).next().is_some());
    let mut pictures: Vec<Picture> =
        questions.map(|question| adding(figures, question).picture(question.name())).collect::<Result<_>>()?;
    pictures.push(reading(figures).picture("reading")?);
    Ok(pictures)
}

/// The answers to one question.
pub fn answers(figures: &Figures, question: Question) -> impl Iterator<Item = &Answer> {
    figures.questions.iter().filter(move |answer| answer.question == question)
}

fn adding(figures: &Figures, question: Question) -> Plot {
    let panels = answers(figures, question).flat_map(|answer| panels(figures, answer)).collect();
    let (title, subtitle) = match question {
        Question::Size => ("Adding files of one size", "Higher is faster; lower takes less space. Logarithmic scales"),
        Question::Repeat => ("Adding the same again", "Lower is faster. Logarithmic scale"),
        Question::Share => ("Adding files of 400 KiB that share blocks", "Lower is faster"),
        Question::Diversity => ("Adding files of several blocks", "Lower is faster. Letters are blocks of 256 KiB"),
    };
    Plot::new(title, subtitle, &figures.names, panels)
}

fn panels(figures: &Figures, answer: &Answer) -> Vec<Panel> {
    let lines = |measure| Marks::Lines(series(figures, answer, measure).map(numbered).collect());
    let millis = |scale| Axis::new("ms a file", scale);
    let panel = |heading: &str, x: &str, y, marks| Panel::new(heading, Axis::new(x, labels(answer)), y, marks);
    match answer.question {
        Question::Size => vec![
            panel("Rate", "size of each file", Axis::new("MB/s", Scale::Log), lines(Measure::Rate)),
            panel(
                "Space on disk",
                "size of each file",
                Axis::new("bytes for each added", Scale::Log),
                lines(Measure::Grown),
            ),
        ],
        Question::Repeat => {
            vec![panel(&answer.heading, "time", millis(Scale::Log), lines(Measure::FileMillis))]
        }
        Question::Share => {
            let bars = Marks::Bars(series(figures, answer, Measure::FileMillis).collect());
            vec![panel("", "of each file", millis(Scale::Linear), bars)]
        }
        Question::Diversity => {
            vec![panel(&answer.heading, "blocks of each file", millis(Scale::Linear), lines(Measure::FileMillis))]
        }
    }
}

/// Each store's figures, in the order of the directories.
fn series(figures: &Figures, answer: &Answer, measure: Measure) -> impl Iterator<Item = Vec<f64>> {
    (0..figures.names.len())
        .map(move |store| (0..answer.sets.len()).map(|set| figures.figure(answer, store, set, measure)).collect())
}

fn numbered(values: Vec<f64>) -> Vec<(f64, f64)> {
    values.into_iter().zip(0..).map(|(value, index)| (f64::from(index), value)).collect()
}

fn labels(answer: &Answer) -> Scale {
    Scale::names(answer.sets.iter().map(|set| set.label.as_str()))
}

fn reading(figures: &Figures) -> Plot {
    let whole = figures.readings.iter().map(|reading| vec![reading.whole_rate(figures.large_bytes)]);
    let random = figures.readings.iter().map(|reading| {
        let reads = [reading.small, reading.blocks];
        reads.iter().map(|reads| reads.map_or(f64::NAN, |reads| reads.latency.median.as_secs_f64() * 1e3)).collect()
    });
    let panels = vec![
        Panel::new(
            "From beginning to end, by one process: higher is faster",
            Axis::new("", Scale::names(["one large file"])),
            Axis::new("MB/s", Scale::Linear),
            Marks::Bars(whole.collect()),
        ),
        Panel::new(
            "Single blocks in random order over HTTP: lower is faster",
            Axis::new("", Scale::names(["1 KiB", "256 KiB"])),
            Axis::new("median, ms", Scale::Linear),
            Marks::Bars(random.collect()),
        ),
    ];
    Plot::new("Reading what is not in memory", "The page cache was dropped before", &figures.names, panels)
}

#[test]
fn every_question_has_a_picture_with_every_store() {
    let pictures = all(&super::figures::tests::figures()).expect("they can be drawn");
    let names: Vec<&str> = pictures.iter().map(|picture| picture.name).collect();
    assert_eq!(names, ["size", "repeat", "share", "diversity", "reading"]);
    for Picture { svg, name, .. } in &pictures {
        assert!(svg.contains("Causeway flat") && svg.contains("Kubo pebble"), "{name}: {svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}: {svg}");
    }
}
