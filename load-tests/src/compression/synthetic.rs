//! Synthetic data: in real formats, or with their real headers.

use crate::random::SplitMix;
use crate::sample;
use std::fmt::Write as _;

/// Readings of sensors, as they are logged: times that go up, a few names, numbers that wander.
pub fn csv(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = SplitMix::new(seed);
    let mut out = String::from("time,station,temperature,humidity,pressure,battery,status\n");
    let (mut time, mut temperatures) = (1_700_000_000_u64, [15.0_f64; 40]);
    while out.len() < bytes {
        time += random.word() % 3;
        let station = (random.word() % 40) as usize;
        temperatures[station] += random.unit() - 0.5;
        let (temperature, humidity) = (temperatures[station], random.unit() * 60.0 + 30.0);
        let pressure = 1013.0 + (random.unit() - 0.5) * 20.0;
        let status = ["ok", "ok", "ok", "late", "calibrating"][(random.word() % 5) as usize];
        let battery = random.word() % 100;
        _ = writeln!(out, "{time},ST-{station:03},{temperature:.2},{humidity:.1},{pressure:.2},{battery},{status}");
    }
    cut(out.into_bytes(), bytes)
}

/// Answers of an API: lists of records with the same keys. Each piece is a document.
pub fn json(bytes: usize, piece_bytes: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = SplitMix::new(seed);
    let words = words(seed);
    lengths(bytes, piece_bytes).map(|length| document(&mut random, &words, length)).collect()
}

fn document(random: &mut SplitMix, words: &[String], bytes: usize) -> Vec<u8> {
    let mut out = String::from("{\"items\":[");
    while out.len() + 2 < bytes {
        let id = format!("{:016x}", random.word());
        let [first, last, city, tag] = [(); 4].map(|()| word(random, words));
        let (age, score, active) = (random.word() % 90, random.unit() * 100.0, random.word().is_multiple_of(2));
        let (latitude, longitude) = (random.unit() * 180.0 - 90.0, random.unit() * 360.0 - 180.0);
        _ = write!(
            out,
            "{{\"id\":\"{id}\",\"name\":\"{first} {last}\",\"city\":\"{city}\",\
             \"age\":{age},\"score\":{score:.3},\"active\":{active},\"tags\":[\"{tag}\",\"{city}\"],\
             \"location\":{{\"latitude\":{latitude:.5},\"longitude\":{longitude:.5}}}}},"
        );
    }
    out.pop();
    out.push_str("]}");
    out.into_bytes()
}

/// Pages of one site: the same head, menu and foot around different words.
pub fn html(bytes: usize, piece_bytes: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = SplitMix::new(seed);
    let words = words(seed);
    lengths(bytes, piece_bytes).map(|length| page(&mut random, &words, length)).collect()
}

fn page(random: &mut SplitMix, words: &[String], bytes: usize) -> Vec<u8> {
    let title = format!("{} {}", word(random, words), word(random, words));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<link \
         rel=\"stylesheet\" href=\"/assets/site.css\">\n</head>\n<body class=\"page\">\n<nav class=\"menu\">\n"
    );
    for entry in words.iter().take(30) {
        _ = writeln!(out, "  <a class=\"menu-entry\" href=\"/topics/{entry}/\">{entry}</a>");
    }
    _ = writeln!(out, "</nav>\n<main>\n<h1>{title}</h1>");
    let foot = "</main>\n<footer class=\"foot\">Made up. <a href=\"/about/\">About</a></footer>\n</body>\n</html>\n";
    while out.len() + foot.len() < bytes {
        let paragraph: Vec<&str> = (0..30 + random.word() % 60).map(|_| word(random, words)).collect();
        let (id, link) = (random.word() % 1000, word(random, words));
        _ = writeln!(
            out,
            "<section id=\"part-{id}\">\n<h2>{}</h2>\n<p class=\"text\">{}. <a \
             href=\"/topics/{link}/#part-{id}\">{link}</a></p>\n</section>",
            word(random, words),
            paragraph.join(" ")
        );
    }
    out.push_str(foot);
    out.into_bytes()
}

/// JPEG files as a compressor sees them: headers (start of image, JFIF, start of scan), and then what cannot be told
/// from noise, in which ff is followed by 00 (ITU-T T.81, F.1.2.3). It is no picture.
pub fn jpeg_like(bytes: usize, piece_bytes: usize, seed: u64) -> Vec<Vec<u8>> {
    let one = |(length, seed): (usize, u64)| {
        let mut out = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x48\x00\x48\x00\x00\xff\xda\x00\x0c".to_vec();
        for byte in sample::bytes(length, seed) {
            out.push(byte);
            if byte == 0xff {
                out.push(0);
            }
        }
        out.extend_from_slice(b"\xff\xd9");
        out
    };
    lengths(bytes, piece_bytes).zip(seed << 16..).map(one).collect()
}

/// Films as a compressor sees them: the file's type, tables of samples, which shrink, and what cannot be told from
/// noise (ISO/IEC 14496-12). It is no film.
pub fn mp4_like(bytes: usize, seed: u64) -> Vec<u8> {
    let boxed = |kind: &[u8; 4], body: &[u8]| {
        let length = u32::try_from(body.len() + 8).unwrap_or(u32::MAX);
        [&length.to_be_bytes(), &kind[..], body].concat()
    };
    let mut random = SplitMix::new(seed);
    // A sample of some kilobytes each, in thirty-two bits each.
    let sizes: Vec<u8> = (0..bytes / 4000).flat_map(|_| (2000 + (random.word() % 4000) as u32).to_be_bytes()).collect();
    let head = [boxed(b"ftyp", b"isom\x00\x00\x02\x00isomiso2mp41"), boxed(b"moov", &boxed(b"stsz", &sizes))].concat();
    let samples = sample::bytes(bytes.saturating_sub(head.len() + 8), seed);
    [head, boxed(b"mdat", &samples)].concat()
}

/// Sound as it is recorded: three tones and some noise, 16 bits, one channel, 44,100 a second (RIFF).
pub fn wav(bytes: usize, seed: u64) -> Vec<u8> {
    const RATE: u32 = 44_100;
    let mut random = SplitMix::new(seed);
    let data_bytes = u32::try_from(bytes.saturating_sub(44) / 2 * 2).unwrap_or(u32::MAX - 43);
    let mut out = Vec::with_capacity(bytes);
    out.extend_from_slice(b"RIFF");
    out.extend_from_slice(&(data_bytes + 36).to_le_bytes());
    out.extend_from_slice(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    out.extend_from_slice(&RATE.to_le_bytes());
    out.extend_from_slice(&(RATE * 2).to_le_bytes());
    out.extend_from_slice(b"\x02\0\x10\0data");
    out.extend_from_slice(&data_bytes.to_le_bytes());
    for index in 0..data_bytes / 2 {
        let time = f64::from(index) / f64::from(RATE);
        let tone = |pitch: f64| (time * pitch * std::f64::consts::TAU).sin();
        let loudness = 0.2 + 0.2 * (time * 0.7).sin();
        let value = loudness * (tone(220.0) + 0.5 * tone(441.3) + 0.25 * tone(1203.0)) + 0.02 * (random.unit() - 0.5);
        out.extend_from_slice(&((value * 20_000.0) as i16).to_le_bytes());
    }
    out
}

/// Pieces that are as long as all together, the last one perhaps shorter.
fn lengths(bytes: usize, piece_bytes: usize) -> impl Iterator<Item = usize> {
    (0..bytes).step_by(piece_bytes).map(move |start| piece_bytes.min(bytes - start))
}

/// Words of a synthetic language.
fn words(seed: u64) -> Vec<String> {
    let text = sample::text(64 << 10, seed);
    let mut words: Vec<String> = String::from_utf8_lossy(&text).split_whitespace().map(str::to_owned).collect();
    words.pop();
    words
}

fn word<'a>(random: &mut SplitMix, words: &'a [String]) -> &'a str {
    &words[(random.word() % words.len() as u64) as usize]
}

fn cut(mut bytes: Vec<u8>, length: usize) -> Vec<u8> {
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share that zstd leaves.
    fn share(bytes: &[u8]) -> f64 {
        zstd::encode_all(bytes, 3).expect("memory does not fail").len() as f64 / bytes.len() as f64
    }

    #[test]
    fn formats_are_what_they_say() {
        for document in json(200_000, 90_000, 1) {
            let value: serde_json::Value = serde_json::from_slice(&document).expect("it is JSON");
            assert!(value["items"].as_array().is_some_and(|items| items.len() > 10));
        }
        let csv = csv(100_000, 1);
        let text = String::from_utf8_lossy(&csv);
        assert!(text.lines().rev().skip(1).all(|line| line.split(',').count() == 7), "{text}");
        for page in html(200_000, 90_000, 1) {
            let page = String::from_utf8(page).expect("it is text");
            assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
            assert_eq!(page.matches("<section").count(), page.matches("</section>").count());
        }
        let wav = wav(10_001, 1);
        assert_eq!((wav.len(), &wav[8..16], &wav[36..40]), (10_000, &b"WAVEfmt "[..], &b"data"[..]));
        assert_eq!(u32::from_le_bytes([wav[40], wav[41], wav[42], wav[43]]), 9_956);
    }

    #[test]
    fn media_begin_as_such_and_do_not_shrink() {
        let film = mp4_like(500_000, 1);
        assert_eq!((film.len(), &film[4..8]), (500_000, &b"ftyp"[..]));
        let length = |at: usize| u32::from_be_bytes([film[at], film[at + 1], film[at + 2], film[at + 3]]) as usize;
        let tables = length(0);
        assert_eq!(&film[tables + 4..tables + 8], b"moov");
        let samples = tables + length(tables);
        assert_eq!((&film[samples + 4..samples + 8], samples + length(samples)), (&b"mdat"[..], film.len()));
        assert!(share(&film) > 0.98);
        for picture in jpeg_like(400_000, 150_000, 1) {
            assert!(picture.starts_with(b"\xff\xd8\xff\xe0") && picture.ends_with(b"\xff\xd9"));
            assert!(share(&picture) > 0.98);
        }
    }

    #[test]
    fn text_shrinks_as_text_does() {
        let table = [
            ("CSV", csv(300_000, 1), 0.2..0.6),
            ("JSON", json(300_000, 300_000, 1).concat(), 0.15..0.6),
            ("HTML", html(300_000, 90_000, 1).concat(), 0.15..0.6),
            ("WAV", wav(300_000, 1), 0.5..0.98),
        ];
        for (name, bytes, expected) in table {
            assert!(expected.contains(&share(&bytes)), "{name}: {}", share(&bytes));
        }
    }
}
