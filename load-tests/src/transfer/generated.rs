//! Generated texts in the form of public data sets, which zstd compresses about as much. They are other bytes: no line
//! is from a data set.

use crate::random::SplitMix;
use std::fmt::Write as _;

const AIRPORTS: usize = 100;
const CARRIERS: [&str; 16] =
    ["9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV"];
const AIRCRAFT: u64 = 4_000;
const FLIGHTS: usize = 1_000;
const SYLLABLES: usize = 3_000;

/// Makes so many bytes from a seed.
pub type Generator = fn(usize, u64) -> Vec<u8>;

/// Departures of a year as the table of nycflights13 has them: a line for each, with times, delays and the aircraft.
pub fn flights_csv(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = SplitMix::new(seed);
    let airports = names(&mut random, AIRPORTS, 3);
    let schedule: Vec<Flight> = (0..FLIGHTS).map(|index| Flight::new(&mut random, index)).collect();
    let mut out = String::from(
        "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,\
         origin,dest,air_time,distance,hour,minute,time_hour\n",
    );
    for day in 0.. {
        let (month, date) = (day / 28 % 12 + 1, day % 28 + 1);
        for flight in &schedule {
            if random.word().is_multiple_of(10) {
                continue;
            }
            let Flight { number, carrier, origin, destination, departure, minutes } = *flight;
            let (late, lost) = (delay(&mut random), (random.word() % 25) as i64 - 14);
            let tail = random.word() % AIRCRAFT;
            let arrival = departure + minutes;
            let (hour, minute, air) = (departure / 60, departure % 60, minutes - 25 + lost / 2);
            _ = writeln!(
                out,
                "2013,{month},{date},{},{},{late},{},{},{},{carrier},{number},N{tail:03}{carrier},{},{},{air},{},{hour},\
                 {minute},2013-{month:02}-{date:02}T{hour:02}:00:00Z",
                clock(departure + late),
                clock(departure),
                clock(arrival + late + lost),
                clock(arrival),
                late + lost,
                ["EWR", "JFK", "LGA"][origin],
                airports[destination],
                minutes * 7 - 200,
            );
            if out.len() >= bytes {
                return cut(out, bytes);
            }
        }
    }
    cut(out, bytes)
}

/// A flight of the schedule, which is in the order of the departures. Times are in minutes.
struct Flight {
    number: u64,
    carrier: &'static str,
    origin: usize,
    destination: usize,
    departure: i64,
    minutes: i64,
}

impl Flight {
    fn new(random: &mut SplitMix, index: usize) -> Self {
        Self {
            number: random.word() % 5_000 + 1,
            carrier: CARRIERS[(random.word() % CARRIERS.len() as u64) as usize],
            origin: (random.word() % 3) as usize,
            destination: (random.word() % AIRPORTS as u64) as usize,
            departure: 300 + (index * 1_080 / FLIGHTS) as i64,
            minutes: (random.word() % 300) as i64 + 60,
        }
    }
}

/// Minutes: mostly few, sometimes many.
fn delay(random: &mut SplitMix) -> i64 {
    (-(1.0 - random.unit()).ln() * 14.0) as i64 - 10
}

/// Minutes of a day as a number of hours and minutes.
fn clock(minutes: i64) -> i64 {
    let minutes = minutes.rem_euclid(1_440);
    minutes / 60 * 100 + minutes % 60
}

/// Places with their coordinates, as the table of GeoNames is published in JSON.
pub fn cities_json(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = SplitMix::new(seed);
    let syllables = names(&mut random, SYLLABLES, 3);
    let mut out = String::from("[");
    let (mut country, mut region) = (String::from("AD"), 0);
    let (mut latitude, mut longitude) = (42.5, 1.5);
    while out.len() < bytes {
        if random.word().is_multiple_of(600) {
            country = names(&mut random, 1, 2).concat();
            (latitude, longitude) = (random.unit() * 110.0 - 45.0, random.unit() * 340.0 - 170.0);
        }
        if random.word().is_multiple_of(4) {
            region = random.word() % 16 + 1;
        }
        let syllable = |random: &mut SplitMix| syllables[(random.word() % SYLLABLES as u64) as usize].to_lowercase();
        let name: String = (0..2 + random.word() % 2).map(|_| syllable(&mut random)).collect();
        let (north, east) = (latitude + random.unit() * 4.0, longitude + random.unit() * 6.0);
        let (initial, rest) = (name[..1].to_uppercase(), &name[1..]);
        _ = write!(
            out,
            "{{\"name\":\"{initial}{rest}\",\"lat\":\"{north:.5}\",\"lng\":\"{east:.5}\",\"country\":\"{country}\",\
             \"admin1\":\"{region:02}\",\"admin2\":\"\"}},"
        );
    }
    cut(out, bytes)
}

/// Flights with a delay, a distance and a time of day, as the data set of Vega has them.
pub fn flights_json(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = SplitMix::new(seed);
    let distances: Vec<u64> = (0..250).map(|_| random.word() % 2_600 + 60).collect();
    let mut out = String::from("[");
    let mut minute = 0_u64;
    while out.len() < bytes {
        let common = random.unit() * random.unit();
        let distance = distances[(common * distances.len() as f64) as usize];
        minute += u64::from(random.word().is_multiple_of(140));
        let time = (minute % 1_440) as f64 / 60.0;
        _ = write!(out, "{{\"delay\":{},\"distance\":{distance},\"time\":{time}}},", delay(&mut random));
    }
    cut(out, bytes)
}

/// Cases of the bidirectional algorithm, as Unicode's test has them: sequences of classes in their order, a few of
/// which are left out, and for which directions of the paragraph they hold.
pub fn bidi_test(bytes: usize, seed: u64) -> Vec<u8> {
    const CLASSES: [&str; 23] = [
        "L", "R", "AL", "EN", "ES", "ET", "AN", "CS", "NSM", "BN", "B", "S", "WS", "ON", "LRE", "LRO", "RLE", "RLO",
        "PDF", "LRI", "RLI", "FSI", "PDI",
    ];
    let mut random = SplitMix::new(seed);
    let mut out = String::new();
    loop {
        let levels: Vec<String> =
            (0..4).map(|_| ["x", "0", "1", "2"][(random.word() % 4) as usize].to_owned()).collect();
        _ = writeln!(out, "\n@Levels:\t{}\n@Reorder:\t0 1 2 3", levels.join(" "));
        let (first, directions) = (random.word() as usize, random.word() % 7 + 1);
        for second in CLASSES {
            for third in CLASSES {
                for fourth in CLASSES {
                    if random.word().is_multiple_of(20) {
                        continue;
                    }
                    let first = CLASSES[first % CLASSES.len()];
                    _ = writeln!(out, "{first} {second} {third} {fourth}; {directions}");
                    if out.len() >= bytes {
                        return cut(out, bytes);
                    }
                }
            }
        }
    }
}

/// Names of so many capital letters.
fn names(random: &mut SplitMix, count: usize, letters: usize) -> Vec<String> {
    let letter = |random: &mut SplitMix| char::from(b'A' + (random.word() % 26) as u8);
    (0..count).map(|_| (0..letters).map(|_| letter(random)).collect()).collect()
}

fn cut(text: String, bytes: usize) -> Vec<u8> {
    let mut text = text.into_bytes();
    text.truncate(bytes);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ratios of the data sets' first 8 MB, whole and in blocks of 256 KiB.
    #[test]
    fn they_shrink_about_as_the_data_sets_do() {
        let table: [(&str, Generator, f64, f64); 4] = [
            ("flights.csv", flights_csv, 4.22, 3.70),
            ("cities.json", cities_json, 4.89, 4.93),
            ("flights-200k.json", flights_json, 9.17, 9.28),
            ("BidiTest.txt", bidi_test, 8.21, 8.21),
        ];
        let packed = |bytes: &[u8]| zstd::bulk::compress(bytes, 3).expect("memory does not fail").len() as f64;
        let mut wrong = Vec::new();
        for (name, generate, whole, blocks) in table {
            let text = generate(8_000_000, 1);
            assert_eq!((text.len(), &text[..100]), (8_000_000, &generate(100, 1)[..]), "{name}");
            let of_whole = text.len() as f64 / packed(&text);
            let of_blocks = text.len() as f64 / text.chunks(256 << 10).map(packed).sum::<f64>();
            for (found, expected) in [(of_whole, whole), (of_blocks, blocks)] {
                if !(0.85..1.15).contains(&(found / expected)) {
                    wrong.push(format!("{name}: {found:.2} instead of {expected}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
