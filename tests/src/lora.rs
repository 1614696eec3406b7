//! A LoRA adapter with random weights: it makes a model say something else, and that is all that it is for.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::gguf::{self, Random, TensorInfo, Value};

/// The matrices of a model that an adapter changes.
#[derive(Debug, Clone, Copy)]
pub struct Base {
    /// The model's architecture, as its file names it.
    pub architecture: &'static str,
    /// Blocks of layers.
    pub blocks: u32,
    /// Of each block: a matrix's name, its columns and rows.
    pub matrices: &'static [(&'static str, u32, u32)],
}

/// SmolLM2 with 135 million parameters: its queries and values.
pub const SMOLLM2: Base =
    Base { architecture: "llama", blocks: 30, matrices: &[("attn_q", 576, 576), ("attn_v", 576, 192)] };

/// Columns of the one factor, rows of the other.
const RANK: u32 = 4;
/// What the product is multiplied with, times the rank. Seen to change SmolLM2's answers, and not to numbers that are none.
const ALPHA: f32 = 8.0;
/// The largest weight.
const WEIGHT_MAX: f32 = 0.1;

impl Base {
    /// Writes an adapter for it.
    pub fn write_adapter(&self, path: &Path) -> io::Result<()> {
        let mut to = BufWriter::new(File::create(path)?);
        let values = [
            ("general.type", Value::Text("adapter")),
            ("general.architecture", Value::Text(self.architecture)),
            ("adapter.type", Value::Text("lora")),
            ("adapter.lora.alpha", Value::F32(ALPHA)),
        ];
        let tensors = self.tensors();
        gguf::write_header(&mut to, &values, &tensors)?;
        let mut random = Random::new();
        for tensor in &tensors {
            for _ in 0..tensor.bytes / 4 {
                to.write_all(&(random.next_float() * WEIGHT_MAX).to_le_bytes())?;
            }
            gguf::pad(&mut to, tensor.bytes)?;
        }
        to.flush()
    }

    fn tensors(&self) -> Vec<TensorInfo> {
        let factors = |block, &(name, columns, rows): &(&str, u32, u32)| {
            let named = |factor| format!("blk.{block}.{name}.weight.lora_{factor}");
            [TensorInfo::floats(named("a"), &[columns, RANK]), TensorInfo::floats(named("b"), &[RANK, rows])]
        };
        (0..self.blocks).flat_map(|block| self.matrices.iter().flat_map(move |m| factors(block, m))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_matrix_has_two_factors_and_the_file_all_their_weights() {
        let tensors = SMOLLM2.tensors();
        assert_eq!(tensors.len(), 30 * 2 * 2);
        assert_eq!(tensors[3].name, "blk.0.attn_v.weight.lora_b");
        assert_eq!(tensors[3].shape, [4, 192]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("adapter.gguf");
        SMOLLM2.write_adapter(&path).unwrap();
        let weights: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
        assert!(std::fs::metadata(path).unwrap().len() > weights);
    }
}
