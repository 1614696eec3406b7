//! The tables agree with themselves and with the specification.

use ferry_protocol::calls::{CALLS, CallCode, Manner, Phase};
use ferry_protocol::limits::SOURCES_MAX;
use ferry_protocol::ops::{GLU_OPS, OPS, Op, UNARY_OPS};
use ferry_protocol::types::{TYPES, TensorType};
use std::collections::HashSet;

const SPEC: &str = include_str!("../../SPEC.md");

/// The words of the specification between a heading and the next one.
fn section(heading: &str) -> &'static str {
    let start = SPEC.find(heading).unwrap_or_else(|| panic!("SPEC.md lacks {heading}")) + heading.len();
    let rest = &SPEC[start..];
    &rest[..rest.find("\n#").unwrap_or(rest.len())]
}

/// The specification numbers exactly these names in this order.
fn numbered(heading: &str, names: &[&str]) {
    let words: Vec<&str> = section(heading).split_whitespace().collect();
    let listed: Vec<(usize, &str)> = words
        .windows(2)
        .filter_map(|pair| Some((pair[0].parse().ok()?, pair[1].strip_prefix('`')?.split('`').next()?)))
        .collect();
    let expected: Vec<(usize, &str)> = names.iter().copied().enumerate().collect();
    assert_eq!(listed, expected, "{heading}");
}

#[test]
fn the_specification_numbers_every_operation() {
    numbered("\n### Operations\n", &OPS.iter().map(|op| op.name).collect::<Vec<_>>());
    numbered("\n### Unary operations\n", UNARY_OPS);
    numbered("\n### Gated linear units\n", GLU_OPS);
}

#[test]
fn the_specification_has_every_type() {
    let text = section("\n### Element types\n");
    for row in TYPES {
        let line =
            format!("| {} | `{}` | {} | {} |", row.number, row.name, row.block_elements, row.block_bytes);
        assert!(text.contains(&line), "SPEC.md lacks {line}");
    }
    assert_eq!(text.lines().filter(|line| line.contains("| `")).count(), TYPES.len());
}

#[test]
fn names_are_unique() {
    let unique = |names: &[&str]| names.iter().collect::<HashSet<_>>().len() == names.len();
    assert!(unique(&OPS.iter().map(|op| op.name).collect::<Vec<_>>()));
    assert!(unique(UNARY_OPS) && unique(GLU_OPS));
    assert!(unique(&TYPES.iter().map(|row| row.name).collect::<Vec<_>>()));
    assert!(unique(&CALLS.iter().map(|call| call.name).collect::<Vec<_>>()));
}

#[test]
fn every_operation_is_found_by_its_name_and_number() {
    for (at, row) in OPS.iter().enumerate() {
        let op = Op(at as u32);
        assert_eq!((Op::by_name(row.name), op.name()), (Some(op), Some(row.name)));
        assert!(row.sources_min <= SOURCES_MAX);
    }
    assert_eq!((Op::by_name("add"), Op::by_name(""), Op(u32::MAX).name()), (None, None, None));
}

#[test]
fn every_type_is_found_by_its_number() {
    for row in TYPES {
        assert_eq!(TensorType(row.number).row(), Some(row));
        assert!(row.block_elements.is_power_of_two() && row.block_bytes > 0);
    }
    // Q4_2, Q4_3 and the repacked ones are gone from ggml and stay unknown.
    for gone in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
        assert_eq!(TensorType(gone).row(), None);
    }
}

#[test]
fn the_specification_has_every_preparation() {
    let start = SPEC.find("**Preparations.**").expect("SPEC.md says what they are");
    let sentence = SPEC[start..].split(':').next().unwrap_or_default();
    let listed: Vec<&str> = sentence.split('`').skip(1).step_by(2).collect();
    let preparations = CALLS.iter().filter(|call| call.code.is_preparation());
    assert_eq!(listed, preparations.clone().map(|call| call.name).collect::<Vec<_>>());
    // Somebody is waiting for an answer: that cannot wait.
    assert!(preparations.clone().all(|call| call.manner == Manner::Posted));
}

#[test]
fn every_call_is_found_by_its_code() {
    for call in CALLS {
        assert_eq!(call.code.row().map(|row| row.name), Some(call.name));
        assert_eq!(call.code.to_string(), call.name);
        let handshake = matches!(call.code, CallCode::HELLO | CallCode::OPEN);
        assert_eq!(call.phase == Phase::Handshake, handshake);
        assert!(!handshake || call.manner == Manner::Awaited);
        assert!((1..=ferry_protocol::VERSION_MAX).contains(&call.since));
    }
    assert!(CallCode::PAD.row().is_none() && CallCode(0xffff).row().is_none());
}
