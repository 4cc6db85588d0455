//! Fills the tables of a site as its gateways would have, by statements in the database: blocks with keys that are
//! distributed as multihashes are, pins that have them, and the records of these pins in the log of pin metadata.
//!
//! The indexes of large tables are dropped before and made again by their own definitions, because inserting keys in
//! random places takes hours.
//!
//! Non-goals: the objects of blocks. They are in the storage for one slot only, and are empty: a comparison with the
//! index lists them and does not read them.

use crate::random::SplitMix;
use crate::site::postgres::Postgres;
use anyhow::{Context, Result, ensure};
use cid::multibase::Base;
use content::{Cid, codec, hashes};
use serde_json::json;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Blocks of a pin.
const PIN_BLOCKS: u64 = 250;
/// Bytes of a block, and of its object.
const BLOCK_BYTES: u64 = 262_144;
const OBJECT_BYTES: u64 = 262_204;
/// When the pins were made, one in each second: the first of January of 2026.
const DAY: &str = "2026-01-01";
const DAY_MS: u64 = 1_767_225_600_000;
/// Whose they are: the token of the load tests is that of the operator.
const OWNER: &str = "operator";
/// The slot of the storage that has objects.
const SLOT: u8 = 0;

/// What the tables of a site have.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    pub blocks: u64,
}

impl Rows {
    /// So many blocks, or some fewer: every pin has the same number.
    pub fn of(blocks: u64) -> Self {
        Self { blocks: blocks / PIN_BLOCKS * PIN_BLOCKS }
    }

    pub fn pins(self) -> u64 {
        self.blocks / PIN_BLOCKS
    }

    pub fn blocks_of_a_pin(self) -> u64 {
        PIN_BLOCKS
    }

    /// The CIDs of so many random blocks. They may have duplicates.
    pub fn random_cids(self, random: &mut SplitMix, count: usize) -> Result<Vec<String>> {
        (0..count).map(|_| Ok(cid(random.word() % self.blocks, codec::RAW)?.to_string())).collect()
    }

    /// Fills the tables of a new site.
    pub fn fill(self, database: &Postgres, schema: &str, dir: &Path) -> Result<()> {
        let records = dir.join("records");
        fs::write(&records, self.records()?)?;
        database.script(&self.script(schema, &records)).with_context(|| format!("filling {schema}"))?;
        Ok(fs::remove_file(records)?)
    }

    /// The records of the pins, in the text format of `COPY`: keys and contents in hexadecimal.
    fn records(self) -> Result<String> {
        let mut lines = String::new();
        for pin in 0..self.pins() {
            let record = json!({
                "owner": OWNER, "cid": root(pin)?.to_string(), "created_ms": DAY_MS + pin * 1000,
                "name": format!("pin {pin}"), "outcome": "pinned",
            });
            let (key, content) = (format!("request/{}", request_id(pin)), record.to_string());
            writeln!(lines, "\\\\x{}\t\\\\x{}", hexadecimal(&key), hexadecimal(&content))?;
        }
        Ok(lines)
    }

    fn script(self, schema: &str, records: &Path) -> String {
        let (blocks, pins, records) = (self.blocks, self.pins(), records.display());
        let (bytes, block_bytes) = (blocks * OBJECT_BYTES, blocks * BLOCK_BYTES);
        // Numbers of pins are positive and random, as those of gateways.
        let pin_id = |pin: &str| format!("hashint8extended({pin}, 1) & 9223372036854775807");
        let digest = |number: &str| format!("sha256(int8send({number}))");
        format!(
            "SET search_path = \"{schema}\";
            SET synchronous_commit = off;
            SET maintenance_work_mem = '512MB';
            CREATE TEMPORARY TABLE dropped (removal text, addition text);
            INSERT INTO dropped
                SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', indrelid::regclass, conname),
                    format('ALTER TABLE %s ADD CONSTRAINT %I %s', indrelid::regclass, conname,
                        pg_get_constraintdef(pg_constraint.oid))
                FROM pg_index JOIN pg_constraint ON conindid = indexrelid
                WHERE indrelid IN ('block'::regclass, 'member'::regclass) AND contype IN ('p', 'u')
                UNION ALL
                SELECT format('DROP INDEX %s', indexrelid::regclass), pg_get_indexdef(indexrelid)
                FROM pg_index
                WHERE indrelid IN ('block'::regclass, 'member'::regclass)
                    AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid);
            SELECT removal FROM dropped \\gexec
            ALTER TABLE block DISABLE TRIGGER USER;
            INSERT INTO block (key, generation, bytes, block_bytes, form, slot, pinned)
                SELECT '\\x1220' || digest, hashint8extended(number, 2), {OBJECT_BYTES}, {BLOCK_BYTES}, 0,
                    get_byte(digest, 31), true
                FROM (SELECT number, {digest_of_number} AS digest FROM generate_series(0, {blocks} - 1) AS number)
                    AS numbered;
            INSERT INTO member (pin, key)
                SELECT {pin_of_number}, '\\x1220' || {digest_of_number} FROM generate_series(0, {blocks} - 1) AS number;
            SELECT addition FROM dropped \\gexec
            ALTER TABLE block ENABLE TRIGGER USER;
            INSERT INTO usage (pinned_blocks, pinned_bytes, pinned_block_bytes, cached_blocks, cached_bytes)
                VALUES ({blocks}, {bytes}, {block_bytes}, 0, 0);
            INSERT INTO pin (id, root, created, complete, blocks, bytes)
                SELECT {id_of_pin}, '\\x01701220' || {digest_of_root},
                    timestamptz '{DAY} 00:00:00Z' + pin * interval '1 second', true, {PIN_BLOCKS},
                    {PIN_BLOCKS} * {BLOCK_BYTES}::bigint
                FROM generate_series(0, {pins} - 1) AS pin;
            \\copy record (key, content) FROM '{records}'
            VACUUM (ANALYZE) block, member, pin, record;
            CHECKPOINT;
            ",
            digest_of_number = digest("number"),
            pin_of_number = pin_id(&format!("(number / {PIN_BLOCKS})")),
            id_of_pin = pin_id("pin"),
            digest_of_root = digest(&format!("pin * {PIN_BLOCKS}")),
        )
    }
}

/// Puts the objects of one slot into the storage, all of them empty. Returns how many there are.
pub fn fill_slot(database: &Postgres, schema: &str, storage: &Path) -> Result<u64> {
    let rows = database.script(&format!(
        "SELECT encode(key, 'hex'), to_hex(generation) FROM \"{schema}\".block
        WHERE slot = {SLOT} AND generation IS NOT NULL"
    ))?;
    let folder = storage.join(format!("v1/blocks/{SLOT:02x}"));
    fs::create_dir_all(&folder)?;
    let mut count = 0;
    for row in rows.lines() {
        let (key, generation) = row.split_once('|').context("a row without two columns")?;
        let name = format!("{}.{generation:0>16}", Base::Base32Lower.encode(Base::Base16Lower.decode(key)?));
        if !folder.join(&name).exists() {
            fs::File::create_new(folder.join(&name)).with_context(|| name.clone())?;
        }
        count += 1;
    }
    Ok(count)
}

/// Bytes on disk of the tables of a site, with their indexes.
pub fn table_bytes(database: &Postgres, schema: &str) -> Result<u64> {
    let sum = database.script(&format!(
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = '{schema}' AND c.relkind = 'r'"
    ))?;
    Ok(sum.trim().parse()?)
}

/// The ID of the request for a pin.
pub fn request_id(pin: u64) -> String {
    format!("{pin:032x}")
}

/// When a pin was requested, by RFC 3339.
pub fn requested_at(pin: u64) -> Result<String> {
    let (hours, minutes, seconds) = (pin / 3600, pin / 60 % 60, pin % 60);
    ensure!(hours < 24, "pin {pin} is not of the day");
    Ok(format!("{DAY}T{hours:02}:{minutes:02}:{seconds:02}Z"))
}

fn root(pin: u64) -> Result<Cid> {
    cid(pin * PIN_BLOCKS, codec::DAG_PB)
}

fn cid(block: u64, codec: u64) -> Result<Cid> {
    Ok(Cid::new_v1(codec, hashes::digest(hashes::SHA2_256, 32, &block.to_be_bytes())?))
}

fn hexadecimal(text: &str) -> String {
    Base::Base16Lower.encode(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pin_has_a_record_and_the_same_number_of_blocks() {
        let rows = Rows::of(1_249);
        assert_eq!((rows.blocks, rows.pins()), (1_000, 4));
        let records = rows.records().expect("are made");
        let (key, content) = records.lines().nth(3).and_then(|line| line.split_once('\t')).expect("there are four");
        let read = |field: &str| {
            let bytes =
                Base::Base16Lower.decode(field.strip_prefix("\\\\x").expect("hexadecimal")).expect("hexadecimal");
            String::from_utf8(bytes).expect("text")
        };
        assert_eq!(read(key), "request/00000000000000000000000000000003");
        let record: serde_json::Value = serde_json::from_str(&read(content)).expect("JSON");
        assert_eq!((&record["created_ms"], &record["outcome"]), (&json!(1_767_225_603_000_u64), &json!("pinned")));
        let root: Cid = record["cid"].as_str().expect("text").parse().expect("a CID");
        assert_eq!(root, cid(750, codec::DAG_PB).expect("a digest"));
    }

    #[test]
    fn pins_are_of_one_day() {
        assert_eq!(requested_at(40_000).ok().as_deref(), Some("2026-01-01T11:06:40Z"));
        assert_eq!(requested_at(86_399).ok().as_deref(), Some("2026-01-01T23:59:59Z"));
        assert!(requested_at(86_400).is_err());
    }
}
