//! What operations mean, where ggml changed it.
//!
//! ggml keeps an operation's name when it gives it another parameter, and a build from before reads other things into the
//! same tensors. On the wire everything means what it means in ggml 0.26: a guest brings what an older build wrote into
//! that form ([`modernise`]), and a host whose ggml is too old for what is asked ([`since`]) does not have the operation.
//!
//! A release here is the first in which a change was *seen*; the one that brought it may be a little older, and then a
//! host of between declines what it could do.

use crate::limits::{DIMS, OP_PARAMS};
use crate::ops::Op;
use crate::tensor::TensorLayout;
use crate::types::TensorType;

/// How new a ggml is, as far as meanings go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// July 2025: the oldest that is supported.
    #[default]
    Floor,
    /// August 2025 (llama.cpp b6133): attention sinks.
    Sinks,
    /// December 2025 (b7347, ggml 0.9.4).
    V0_9_4,
    /// February 2026 (b8179, ggml 0.9.7).
    V0_9_7,
    /// August 2026 (b10361).
    V0_19,
    /// September 2026 (b10605).
    V0_21,
    /// November 2026.
    V0_26,
}

impl Release {
    /// That of a ggml with this version, if it tells one, and these operations. Version 0.9.4 and those before it lasted
    /// for months, in which operations tell more.
    pub fn of(version: Option<(u32, u32, u32)>, has: impl Fn(&str) -> bool) -> Self {
        match version {
            Some(version) if version >= (0, 26, 0) => Self::V0_26,
            Some(version) if version >= (0, 21, 0) => Self::V0_21,
            Some(version) if version >= (0, 19, 0) => Self::V0_19,
            Some(version) if version >= (0, 9, 7) => Self::V0_9_7,
            _ if has("TOP_K") => Self::V0_9_4,
            _ if has("ADD_ID") => Self::Sinks,
            _ => Self::Floor,
        }
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Floor => "llama.cpp of July 2025",
            Self::Sinks => "llama.cpp of August 2025",
            Self::V0_9_4 => "ggml 0.9.4",
            Self::V0_9_7 => "ggml 0.9.7",
            Self::V0_19 => "ggml 0.19",
            Self::V0_21 => "ggml 0.21",
            Self::V0_26 => "ggml 0.26",
        })
    }
}

/// `"0.21.0"` or `"0.9.4-dev"` as numbers.
pub fn version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.splitn(3, '.');
    let mut next = || {
        let part = parts.next()?;
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse().ok()
    };
    Some((next()?, next()?, next()?))
}

/// `GGML_ROPE_TYPE_IMROPE`, whose bits older builds take for another type's.
const ROPE_TYPE_IMROPE: i32 = 40;
/// `GGML_SCALE_FLAG_ANTIALIAS`.
const SCALE_FLAG_ANTIALIAS: i32 = 1 << 9;
/// `GGML_KQ_MASK_PAD` as it was while there was one.
const MASK_PAD: i64 = 64;

/// Brings parameters into the form of ggml 0.26; `false` if it cannot be told what they mean.
///
/// No build is asked for its age: what an older one writes is what a newer one never does.
pub fn modernise(
    op: Op,
    params: &mut [i32; OP_PARAMS],
    result: &TensorLayout,
    source: Option<&TensorLayout>,
) -> bool {
    match op {
        Op::PAD => {
            // Once there was padding behind only, and the shapes said how much.
            let (sides, circular) = (&params[..2 * DIMS], params[2 * DIMS]);
            if let Some(source) = source.filter(|_| circular == 0 && sides.iter().all(|&side| side == 0)) {
                for dim in 0..DIMS {
                    match i32::try_from(result.ne[dim] - source.ne[dim]) {
                        Ok(behind) if behind >= 0 => params[2 * dim + 1] = behind,
                        _ => return false,
                    }
                }
            }
            true
        }
        // The number of states to keep, at least 1; before there was one, one was kept.
        Op::SSM_SCAN => {
            params[0] = params[0].max(1);
            true
        }
        // Likewise; but the states were laid out in another way, too.
        Op::GATED_DELTA_NET => params[0] >= 1,
        // A factor and whether there are gates; 1 and no before.
        Op::DSV4_HC_PRE => {
            if params[..2] == [0, 0] {
                params[0] = 1f32.to_bits() as i32;
            }
            true
        }
        // An odd one was rounded up.
        Op::TIMESTEP_EMBEDDING => result.ne[0] == i64::from(params[0]),
        _ => true,
    }
}

/// The oldest release that takes an operation for what it is, or does not abort over it.
pub fn since(
    op: Op,
    params: &[i32; OP_PARAMS],
    result: &TensorLayout,
    sources: &[Option<&TensorLayout>],
) -> Release {
    let source = |at: usize| sources.get(at).copied().flatten();
    let needs = |release, when: bool| if when { release } else { Release::Floor };
    let kind_is = |at: usize, kind: TensorType| source(at).is_some_and(|source| source.kind == kind);
    match op {
        Op::PAD => {
            let before = params[..2 * DIMS].iter().step_by(2).any(|&side| side != 0);
            needs(Release::V0_9_4, before || params[2 * DIMS] != 0)
        }
        Op::SOFT_MAX => needs(Release::Sinks, source(2).is_some()),
        Op::FLASH_ATTN_EXT => {
            let rows = source(0).map_or(0, |queries| queries.ne[1]);
            let padded =
                source(3).is_none_or(|mask| mask.ne[1] >= rows.saturating_add(MASK_PAD - 1) & -MASK_PAD);
            needs(Release::Sinks, source(4).is_some()).max(needs(Release::V0_9_7, !padded))
        }
        Op::SET_ROWS => needs(Release::V0_9_4, kind_is(1, TensorType::I32))
            .max(needs(Release::V0_19, kind_is(0, TensorType::F16))),
        Op::ROPE | Op::ROPE_BACK => {
            needs(Release::V0_9_4, params[2] == ROPE_TYPE_IMROPE).max(needs(Release::V0_21, params[15] != 0))
        }
        Op::UPSCALE => needs(Release::V0_9_4, params[0] & SCALE_FLAG_ANTIALIAS != 0),
        Op::TIMESTEP_EMBEDDING => needs(Release::V0_9_4, params[0] % 2 != 0),
        // Where dimensions 2 and 3 have gaps it was an assertion.
        Op::UNARY => {
            let dense = |tensor: &TensorLayout| {
                (2..DIMS).all(|dim| {
                    tensor.ne[dim] == 1
                        || tensor.nb[dim] == tensor.nb[dim - 1].wrapping_mul(tensor.ne[dim - 1] as u64)
                })
            };
            needs(Release::V0_9_7, !source(0).is_none_or(dense) || !dense(result))
        }
        Op::FILL => needs(Release::V0_19, result.kind == TensorType::F16),
        Op::GATED_DELTA_NET => Release::V0_19,
        Op::SSM_SCAN => needs(Release::V0_21, params[0] > 1),
        Op::DSV4_HC_PRE => needs(Release::V0_26, params[0] != 1f32.to_bits() as i32 || params[1] != 0),
        Op::DSV4_HC_POST => needs(Release::V0_26, source(3).is_none()),
        _ => Release::Floor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(kind: TensorType, ne: [i64; DIMS]) -> TensorLayout {
        let row = kind.row().expect("a type");
        let mut nb = [u64::from(row.block_bytes); DIMS];
        for dim in 1..DIMS {
            nb[dim] = nb[dim - 1] * ne[dim - 1] as u64;
        }
        TensorLayout { kind, ne, nb, ..TensorLayout::default() }
    }

    fn f32s(ne: [i64; DIMS]) -> TensorLayout {
        layout(TensorType::F32, ne)
    }

    fn params(list: &[(usize, i32)]) -> [i32; OP_PARAMS] {
        let mut params = [0; OP_PARAMS];
        list.iter().for_each(|&(at, value)| params[at] = value);
        params
    }

    #[test]
    fn releases_go_by_version_and_before_there_was_one_by_operations() {
        let with = |ops: &'static [&'static str]| move |op: &str| ops.contains(&op);
        assert_eq!(Release::of(version("0.26.0"), with(&[])), Release::V0_26);
        assert_eq!(Release::of(version("0.25.1"), with(&["TOP_K"])), Release::V0_21);
        assert_eq!(Release::of(version("0.9.4"), with(&["TOP_K", "ADD_ID"])), Release::V0_9_4);
        assert_eq!(Release::of(version("0.9.4"), with(&["ADD_ID"])), Release::Sinks);
        assert_eq!(Release::of(None, with(&[])), Release::Floor);
        assert_eq!(version("1.2.3-dev"), Some((1, 2, 3)));
        assert_eq!((version("0.9"), version("abc"), version("")), (None, None, None));
    }

    #[test]
    fn padding_that_only_the_shapes_tell_is_written_down() {
        let (source, result) = (f32s([3, 5, 1, 1]), f32s([4, 5, 3, 1]));
        let mut old = params(&[]);
        assert!(modernise(Op::PAD, &mut old, &result, Some(&source)));
        assert_eq!(old, params(&[(1, 1), (5, 2)]));
        // A newer build's own are left alone, the circular ones without any side, too.
        for new in [params(&[(0, 1), (5, 2)]), params(&[(8, 1)])] {
            let mut same = new;
            assert!(modernise(Op::PAD, &mut same, &result, Some(&source)));
            assert_eq!(same, new);
        }
        // Shapes that no padding makes.
        assert!(!modernise(Op::PAD, &mut params(&[]), &source, Some(&result)));
    }

    #[test]
    fn counts_and_factors_that_were_not_there_are_1() {
        let result = f32s([8, 1, 1, 1]);
        let mut scan = params(&[]);
        assert!(modernise(Op::SSM_SCAN, &mut scan, &result, None) && scan[0] == 1);
        let mut pre = params(&[]);
        assert!(modernise(Op::DSV4_HC_PRE, &mut pre, &result, None));
        assert_eq!(f32::from_bits(pre[0] as u32), 1.0);
        assert!(!modernise(Op::GATED_DELTA_NET, &mut params(&[]), &result, None));
        assert!(modernise(Op::GATED_DELTA_NET, &mut params(&[(0, 1)]), &result, None));
        assert!(!modernise(Op::TIMESTEP_EMBEDDING, &mut params(&[(0, 7)]), &result, None));
        assert!(modernise(Op::TIMESTEP_EMBEDDING, &mut params(&[(0, 8)]), &result, None));
    }

    #[test]
    fn what_every_release_understands_is_asked_of_every_release() {
        let tensor = f32s([64, 4, 1, 1]);
        let plain = [Some(&tensor), Some(&tensor), None, None, None];
        for op in
            [Op::PAD, Op::SOFT_MAX, Op::SET_ROWS, Op::ROPE, Op::UPSCALE, Op::UNARY, Op::FILL, Op::MUL_MAT]
        {
            assert_eq!(since(op, &params(&[]), &tensor, &plain), Release::Floor, "{op}");
        }
        assert_eq!(since(Op::SSM_SCAN, &params(&[(0, 1)]), &tensor, &plain), Release::Floor);
    }

    #[test]
    fn what_an_older_release_would_misunderstand_names_the_one_that_does_not() {
        let (t, half, index) = (
            f32s([64, 4, 1, 1]),
            layout(TensorType::F16, [64, 4, 1, 1]),
            layout(TensorType::I32, [4, 1, 1, 1]),
        );
        let ask = |op, list: &[(usize, i32)], sources: &[Option<&TensorLayout>]| {
            since(op, &params(list), &t, sources)
        };
        assert_eq!(ask(Op::PAD, &[(0, 1)], &[Some(&t)]), Release::V0_9_4);
        assert_eq!(ask(Op::PAD, &[(8, 1)], &[Some(&t)]), Release::V0_9_4);
        assert_eq!(ask(Op::PAD, &[(1, 1)], &[Some(&t)]), Release::Floor);
        assert_eq!(ask(Op::SOFT_MAX, &[], &[Some(&t), None, Some(&t)]), Release::Sinks);
        assert_eq!(ask(Op::SET_ROWS, &[], &[Some(&t), Some(&index)]), Release::V0_9_4);
        assert_eq!(ask(Op::SET_ROWS, &[], &[Some(&half), Some(&t)]), Release::V0_19);
        assert_eq!(ask(Op::ROPE, &[(2, ROPE_TYPE_IMROPE)], &[Some(&t)]), Release::V0_9_4);
        assert_eq!(ask(Op::ROPE, &[(15, 8)], &[Some(&t)]), Release::V0_21);
        assert_eq!(ask(Op::SSM_SCAN, &[(0, 2)], &[Some(&t)]), Release::V0_21);
        assert_eq!(ask(Op::DSV4_HC_PRE, &[(0, 0x3f80_0000), (1, 1)], &[Some(&t)]), Release::V0_26);
        assert_eq!(ask(Op::DSV4_HC_POST, &[], &[Some(&t), Some(&t), Some(&t)]), Release::V0_26);
        // Four rows of a mask for four queries: enough only since it need not be padded.
        let heads = [Some(&t), Some(&half), Some(&half), Some(&half)];
        assert_eq!(ask(Op::FLASH_ATTN_EXT, &[], &heads), Release::V0_9_7);
        let padded = layout(TensorType::F16, [64, 64, 1, 1]);
        assert_eq!(ask(Op::FLASH_ATTN_EXT, &[], &[Some(&t), None, None, Some(&padded)]), Release::Floor);
        let mut gaps = f32s([8, 2, 3, 1]);
        gaps.nb[2] *= 2;
        assert_eq!(ask(Op::UNARY, &[], &[Some(&gaps)]), Release::V0_9_7);
    }
}
