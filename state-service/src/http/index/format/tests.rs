//! Index snapshots on the wire: what is written is read again, and bytes of any kind are read or refused.

use super::*;

fn head() -> SlotHead {
    SlotHead {
        pool: PoolName::parse("default").unwrap(),
        worker: WorkerId::parse("w0").unwrap(),
        rank: 3,
        address: "10.0.0.1:8000".to_owned(),
        block_size: NonZeroU32::new(16).unwrap(),
        group: Some(1),
        reach: Reach { next: 9, recent: vec![(7, u64::MAX), (8, 1)], cold: true },
    }
}

fn piece(seed: u64, blocks: u8) -> Piece {
    let held = |at| Held { at, tier: Tier::Host, handle: EngineHash(seed + u64::from(at)), copies: 2 };
    Piece { seed, hashes: (0..u64::from(blocks)).collect(), held: (0..blocks).map(held).collect() }
}

fn all() -> Vec<u8> {
    let mut bytes = begin(77);
    bytes.extend(slot(&head(), &[piece(1, 64), piece(u64::MAX - 64, 1)]).unwrap());
    bytes.extend(record(99, b"of a newer release").unwrap());
    bytes.extend(end(1, 2));
    bytes
}

/// Everything of it, given in parts of so many bytes.
fn read(bytes: &[u8], part: usize) -> Result<Vec<Record>, FormatError> {
    let (mut reader, mut records) = (Reader::default(), Vec::new());
    for part in bytes.chunks(part) {
        reader.push(part);
        while let Some(record) = reader.next()? {
            records.push(record);
        }
    }
    Ok(records)
}

#[test]
fn what_is_written_is_read_however_it_comes() {
    let expected = vec![
        Record::Slot(head(), vec![piece(1, 64), piece(u64::MAX - 64, 1)]),
        Record::Other,
        Record::End(End { slots: 1, left_out: 2 }),
    ];
    for part in [1, 7, 1 << 20] {
        assert_eq!(read(&all(), part).unwrap(), expected, "{part} bytes at once");
    }
}

#[test]
fn what_is_none_says_so_at_once() {
    assert!(matches!(read(b"HTTP/1.1 200", 5), Err(FormatError::NotASnapshot)));
    let mut newer = begin(1);
    newer[4] = 9;
    assert!(matches!(read(&newer, 24), Err(FormatError::Version(9))));
    let mut other = begin(1);
    other[8] ^= 1;
    assert!(matches!(read(&other, 24), Err(FormatError::OtherHashes)));
    let mut long = begin(1);
    long.extend([SLOT, 255, 255, 255, 255]);
    assert!(matches!(read(&long, 24), Err(FormatError::TooLong(_))));
}

/// Cut or changed anywhere: an error, or less; never a panic and nothing without an end.
#[test]
fn hostile_bytes_are_an_error_or_less() {
    let whole = all();
    for cut in 0..whole.len() {
        let records = read(&whole[..cut], 64).unwrap();
        assert!(!records.iter().any(|record| matches!(record, Record::End(_))), "{cut}");
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0xff;
        // Whatever it says: it comes back.
        let _ = read(&changed, 64);
    }
}
