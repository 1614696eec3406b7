//! Models with random weights: of any size, without fetching anything. They speak nonsense at the speed of a real model.
//!
//! What is written is a GGUF file (version 3) of the architecture `llama`, without a vocabulary: programs that take
//! tokens as numbers, llama-bench for one, run it.

use std::io::{self, Write};

use crate::gguf::{self, Random, TensorInfo, Value};

/// What a model measures.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Its name, and its file's.
    pub name: &'static str,
    blocks: u32,
    embedding: u32,
    feed_forward: u32,
    heads: u32,
    heads_kv: u32,
    vocabulary: u32,
    weights: Weights,
}

/// Two blocks of next to nothing: a token takes a fraction of a millisecond, and the rest is what carries it.
pub const TINY: Shape = Shape {
    name: "random-tiny",
    blocks: 2,
    embedding: 64,
    feed_forward: 128,
    heads: 2,
    heads_kv: 1,
    vocabulary: 256,
    weights: Weights::Q8_0,
};

/// As TinyLlama 1.1B.
pub const BILLION: Shape = Shape {
    name: "random-1.1B-Q8_0",
    blocks: 22,
    embedding: 2048,
    feed_forward: 5632,
    heads: 32,
    heads_kv: 4,
    vocabulary: 32_000,
    weights: Weights::Q8_0,
};

/// As Llama 3.2 3B.
pub const THREE_BILLION: Shape = Shape {
    name: "random-3B-Q4_0",
    blocks: 28,
    embedding: 3072,
    feed_forward: 8192,
    heads: 24,
    heads_kv: 8,
    vocabulary: 128_256,
    weights: Weights::Q4_0,
};

/// How the matrices are quantized.
#[derive(Debug, Clone, Copy)]
enum Weights {
    Q8_0,
    Q4_0,
}

/// Elements of a block of either quantization.
const BLOCK: u64 = 32;

impl Weights {
    /// ggml's number of the type, and bytes of a block.
    fn layout(self) -> (u32, u64) {
        match self {
            Self::Q4_0 => (2, 18),
            Self::Q8_0 => (8, 34),
        }
    }

    /// A block's factor, as a half-precision float: 2^-8 and 2^-12, with which a weight is around 0.02.
    fn factor(self) -> [u8; 2] {
        match self {
            Self::Q4_0 => 0x1c00_u16.to_le_bytes(),
            Self::Q8_0 => 0x0c00_u16.to_le_bytes(),
        }
    }
}

impl Shape {
    /// Writes the model's file.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let tensors = self.tensors();
        gguf::write_header(to, &self.values(), &tensors)?;
        let mut random = Random::new();
        for tensor in &tensors {
            match tensor.is_vector() {
                true => (0..tensor.shape[0]).try_for_each(|_| to.write_all(&1.0_f32.to_le_bytes()))?,
                false => self.matrix(tensor, &mut random, to)?,
            }
            gguf::pad(to, tensor.bytes)?;
        }
        Ok(())
    }

    fn matrix(&self, tensor: &TensorInfo, random: &mut Random, to: &mut impl Write) -> io::Result<()> {
        let (_, block_bytes) = self.weights.layout();
        let mut block = vec![0; block_bytes as usize];
        block[..2].copy_from_slice(&self.weights.factor());
        for _ in 0..tensor.bytes / block_bytes {
            block[2..].chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next()[..chunk.len()]));
            to.write_all(&block)?;
        }
        Ok(())
    }

    fn tensors(&self) -> Vec<TensorInfo> {
        let (wide, kv) = (self.embedding, self.embedding / self.heads * self.heads_kv);
        let (kind, block_bytes) = self.weights.layout();
        let vector = |name: String| TensorInfo::floats(name, &[wide]);
        let matrix = |name: String, columns: u32, rows: u32| {
            let (columns, rows) = (u64::from(columns), u64::from(rows));
            TensorInfo { name, shape: vec![columns, rows], kind, bytes: columns * rows / BLOCK * block_bytes }
        };
        let mut tensors = vec![matrix("token_embd.weight".into(), wide, self.vocabulary)];
        for block in 0..self.blocks {
            let named = |part: &str| format!("blk.{block}.{part}.weight");
            tensors.extend([vector(named("attn_norm")), vector(named("ffn_norm"))]);
            for (part, columns, rows) in [
                ("attn_q", wide, wide),
                ("attn_k", wide, kv),
                ("attn_v", wide, kv),
                ("attn_output", wide, wide),
                ("ffn_gate", wide, self.feed_forward),
                ("ffn_up", wide, self.feed_forward),
                ("ffn_down", self.feed_forward, wide),
            ] {
                tensors.push(matrix(named(part), columns, rows));
            }
        }
        tensors.push(vector("output_norm.weight".into()));
        tensors
    }

    fn values(&self) -> [(&'static str, Value<'static>); 12] {
        [
            ("general.architecture", Value::Text("llama")),
            ("general.name", Value::Text(self.name)),
            ("tokenizer.ggml.model", Value::Text("no_vocab")),
            ("llama.block_count", Value::U32(self.blocks)),
            ("llama.context_length", Value::U32(8192)),
            ("llama.embedding_length", Value::U32(self.embedding)),
            ("llama.feed_forward_length", Value::U32(self.feed_forward)),
            ("llama.attention.head_count", Value::U32(self.heads)),
            ("llama.attention.head_count_kv", Value::U32(self.heads_kv)),
            ("llama.rope.dimension_count", Value::U32(self.embedding / self.heads)),
            ("llama.vocab_size", Value::U32(self.vocabulary)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_bytes_that_its_header_announces() {
        let (mut file, mut header) = (Vec::new(), Vec::new());
        TINY.write(&mut file).unwrap();
        let tensors = TINY.tensors();
        gguf::write_header(&mut header, &TINY.values(), &tensors).unwrap();
        let data: u64 = tensors.iter().map(TensorInfo::padded_bytes).sum();
        assert_eq!(file.len() as u64, header.len() as u64 + data);
        // The embeddings come first: blocks of a factor and 32 signed bytes.
        let first = &file[header.len()..][..34];
        assert_eq!(first[..2], TINY.weights.factor());
        assert!(first[2..].iter().any(|&byte| byte != first[2]));
    }

    #[test]
    fn shapes_have_the_parameters_of_their_names() {
        let parameters = |shape: &Shape| -> u64 {
            shape.tensors().iter().map(|tensor| tensor.shape.iter().product::<u64>()).sum()
        };
        assert_eq!(parameters(&BILLION) / 10_000_000, 103); // its output shares the embeddings' matrix
        assert_eq!(parameters(&THREE_BILLION) / 10_000_000, 321);
    }
}
