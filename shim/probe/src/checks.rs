//! Small kernels, one for each feature that a program relies on once a family is claimed, and the results that
//! the CPU says they must have. All numbers are chosen so that floats hold them exactly.

use crate::ffi::{Device, Job};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use memmap2::MmapMut;

/// Width of an Apple GPU's simdgroup.
const SIMD_WIDTH: usize = 32;
/// Side of a simdgroup matrix.
const SIDE: usize = 8;
/// Bytes of mapped memory that are used without a copy: one page of arm64 macOS.
const MAPPED_LENGTH: usize = 16_384;

/// One feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Check {
    /// A sum over a simdgroup (Apple7).
    SimdgroupSum,
    /// A product of two 8 × 8 matrices in a simdgroup (Apple7).
    SimdgroupMatrix,
    /// The 16-bit brain float (Apple6).
    Bfloat,
    /// Dynamic threadgroup memory of the size asked for.
    ThreadgroupMemory,
    /// A buffer over mapped memory, without a copy.
    NoCopyBuffer,
}

/// Every check.
pub const ALL: [Check; 5] = [
    Check::SimdgroupSum,
    Check::SimdgroupMatrix,
    Check::Bfloat,
    Check::ThreadgroupMemory,
    Check::NoCopyBuffer,
];

impl Check {
    /// Its name, on the command line and in tokens.
    pub fn name(self) -> &'static str {
        match self {
            Self::SimdgroupSum => "simdgroup_sum",
            Self::SimdgroupMatrix => "simdgroup_matrix",
            Self::Bfloat => "bfloat",
            Self::ThreadgroupMemory => "threadgroup_memory",
            Self::NoCopyBuffer => "no_copy_buffer",
        }
    }

    /// Name of its kernel.
    fn function(self) -> &'static str {
        match self {
            Self::SimdgroupSum => "check_simdgroup_sum",
            Self::SimdgroupMatrix => "check_simdgroup_matrix",
            Self::Bfloat => "check_bfloat",
            Self::ThreadgroupMemory => "check_threadgroup_memory",
            Self::NoCopyBuffer => "check_no_copy_buffer",
        }
    }

    fn source(self) -> String {
        let body = match self {
            Self::SimdgroupSum => include_str!("../kernels/simdgroup_sum.metal"),
            Self::SimdgroupMatrix => include_str!("../kernels/simdgroup_matrix.metal"),
            Self::Bfloat => include_str!("../kernels/bfloat.metal"),
            Self::ThreadgroupMemory => include_str!("../kernels/threadgroup_memory.metal"),
            Self::NoCopyBuffer => include_str!("../kernels/no_copy_buffer.metal"),
        };
        format!("#include <metal_stdlib>\nusing namespace metal;\n{body}")
    }
}

/// Runs one check; an error says in what way the device does not keep its word.
pub fn run(device: &Device, check: Check, threadgroup_memory: u64) -> Result<()> {
    match check {
        Check::SimdgroupSum => {
            let input: Vec<f32> = (0..2 * SIMD_WIDTH).map(|i| (i * i % 97) as f32).collect();
            let sums = input.chunks(SIMD_WIDTH).flat_map(|lanes| [lanes.iter().sum::<f32>(); SIMD_WIDTH]);
            run_floats(device, check, &input, &sums.collect::<Vec<_>>())
        }
        Check::SimdgroupMatrix => {
            let input: Vec<f32> = (0..2 * SIDE * SIDE).map(|i| (i * 7 % 13) as f32 - 6.0).collect();
            run_floats(device, check, &input, &product(&input[..SIDE * SIDE], &input[SIDE * SIDE..]))
        }
        Check::Bfloat => {
            let input: Vec<f32> = (0..SIMD_WIDTH).map(|i| 1.0 + i as f32 / 4096.0 * 37.0).collect();
            let rounded: Vec<f32> = input.iter().map(|value| to_bfloat(*value)).collect();
            run_floats(device, check, &input, &rounded)
        }
        Check::ThreadgroupMemory => run_threadgroup_memory(device, threadgroup_memory),
        Check::NoCopyBuffer => run_no_copy(device),
    }
}

fn run_floats(device: &Device, check: Check, input: &[f32], expected: &[f32]) -> Result<()> {
    let threads = if check == Check::SimdgroupMatrix { SIMD_WIDTH } else { input.len() };
    let bytes: Vec<u8> = input.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let source = check.source();
    let job = job(check, &source, &bytes, threads);
    let output = device.run(&job, size_of_val(expected))?;
    let actual = output.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
    compare(actual, expected.iter().copied())
}

/// Each thread fills its share of the memory; after a barrier each reads another's share.
fn run_threadgroup_memory(device: &Device, length: u64) -> Result<()> {
    const THREADS: u32 = 256;
    let words = u32::try_from(length / 4)?;
    let (input, source) = (words.to_ne_bytes(), Check::ThreadgroupMemory.source());
    let mut job = job(Check::ThreadgroupMemory, &source, &input, THREADS as usize);
    job.threadgroup_memory = length;
    let output = device.run(&job, THREADS as usize * 4)?;
    let actual = output.as_chunks::<4>().0.iter().map(|bytes| u32::from_ne_bytes(*bytes));
    let share = |thread: u32| {
        let words = (thread..words).step_by(THREADS as usize);
        words.fold(0u32, |sum, word| sum.wrapping_add(word.wrapping_mul(2_654_435_761)))
    };
    compare(actual, (0..THREADS).map(|thread| share(THREADS - 1 - thread)))
}

fn run_no_copy(device: &Device) -> Result<()> {
    let mut memory = MmapMut::map_anon(MAPPED_LENGTH).context("mapping memory")?;
    let words = MAPPED_LENGTH / 4;
    for (index, word) in memory.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *word = u32::try_from(index)?.to_ne_bytes();
    }
    let (input, source) = (u32::try_from(words)?.to_ne_bytes(), Check::NoCopyBuffer.source());
    device.run_in_place(&job(Check::NoCopyBuffer, &source, &input, 256), &mut memory)?;
    let actual = memory.as_chunks::<4>().0.iter().map(|word| u32::from_ne_bytes(*word));
    compare(actual, (0..words).map(|index| (index as u32).wrapping_mul(3).wrapping_add(1)))
}

fn job<'a>(check: Check, source: &'a str, input: &'a [u8], threads: usize) -> Job<'a> {
    Job { source, function: check.function(), input, threads: threads as u64, threadgroup_memory: 0 }
}

fn compare<T: PartialEq + std::fmt::Display>(
    actual: impl ExactSizeIterator<Item = T>,
    expected: impl ExactSizeIterator<Item = T>,
) -> Result<()> {
    if actual.len() != expected.len() {
        bail!("{} results instead of {}", actual.len(), expected.len());
    }
    match actual.zip(expected).enumerate().find(|(_, (actual, expected))| actual != expected) {
        Some((index, (actual, expected))) => bail!("result {index} is {actual}; the CPU says {expected}"),
        None => Ok(()),
    }
}

fn product(left: &[f32], right: &[f32]) -> Vec<f32> {
    let cell =
        |row: usize, column: usize| (0..SIDE).map(|k| left[row * SIDE + k] * right[k * SIDE + column]).sum();
    (0..SIDE * SIDE).map(|index| cell(index / SIDE, index % SIDE)).collect()
}

/// Rounds to the nearest bfloat, ties to even.
fn to_bfloat(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    f32::from_bits(rounded & 0xffff_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfloats_round_to_even() {
        assert_eq!(to_bfloat(1.0), 1.0);
        assert_eq!(to_bfloat(1.0 + 1.0 / 256.0), 1.0, "a tie goes to even");
        assert_eq!(to_bfloat(1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0, "a tie goes to even");
        assert_eq!(to_bfloat(1.0 + 1.5 / 256.0), 1.0 + 2.0 / 256.0);
    }

    #[test]
    fn a_product_by_the_unit_matrix_is_the_matrix() {
        let matrix: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let unit: Vec<f32> = (0..64).map(|i| f32::from(i / 8 == i % 8)).collect();
        assert_eq!(product(&matrix, &unit), matrix);
    }
}
