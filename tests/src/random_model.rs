//! Models with random weights: of any size, without fetching anything. They speak nonsense at the speed of a real model.
//!
//! What is written is a GGUF file (version 3) of the architecture `llama`, without a vocabulary: programs that take
//! tokens as numbers, llama-bench for one, run it.

use std::io::{self, Write};

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

/// ggml's number of 32-bit floats, which the vectors are.
const F32: u32 = 0;
/// Elements of a block of either quantization.
const BLOCK: u64 = 32;
/// GGUF's default.
const ALIGNMENT: u64 = 32;

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

/// A tensor to be written: columns, rows (1 for a vector).
struct Planned {
    name: String,
    columns: u32,
    rows: Option<u32>,
}

impl Planned {
    fn bytes(&self, weights: Weights) -> u64 {
        match self.rows {
            Some(rows) => u64::from(self.columns) * u64::from(rows) / BLOCK * weights.layout().1,
            None => u64::from(self.columns) * 4,
        }
    }
}

impl Shape {
    /// Writes the model's file.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let tensors = self.tensors();
        let header = self.header(&tensors);
        to.write_all(&header)?;
        pad(to, header.len() as u64)?;
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for tensor in &tensors {
            match tensor.rows {
                None => (0..tensor.columns).try_for_each(|_| to.write_all(&1.0_f32.to_le_bytes()))?,
                Some(_) => self.matrix(tensor, &mut random, to)?,
            }
            pad(to, tensor.bytes(self.weights))?;
        }
        Ok(())
    }

    fn matrix(&self, tensor: &Planned, random: &mut Random, to: &mut impl Write) -> io::Result<()> {
        let (_, block_bytes) = self.weights.layout();
        let mut block = vec![0; block_bytes as usize];
        block[..2].copy_from_slice(&self.weights.factor());
        for _ in 0..tensor.bytes(self.weights) / block_bytes {
            block[2..].chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next()[..chunk.len()]));
            to.write_all(&block)?;
        }
        Ok(())
    }

    fn tensors(&self) -> Vec<Planned> {
        let (wide, kv) = (self.embedding, self.embedding / self.heads * self.heads_kv);
        let vector = |name: String| Planned { name, columns: wide, rows: None };
        let matrix = |name: String, columns, rows| Planned { name, columns, rows: Some(rows) };
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

    /// Everything before the tensors' data.
    fn header(&self, tensors: &[Planned]) -> Vec<u8> {
        let numbers = [
            ("llama.block_count", self.blocks),
            ("llama.context_length", 8192),
            ("llama.embedding_length", self.embedding),
            ("llama.feed_forward_length", self.feed_forward),
            ("llama.attention.head_count", self.heads),
            ("llama.attention.head_count_kv", self.heads_kv),
            ("llama.rope.dimension_count", self.embedding / self.heads),
            ("llama.vocab_size", self.vocabulary),
        ];
        let texts = [
            ("general.architecture", "llama"),
            ("general.name", self.name),
            ("tokenizer.ggml.model", "no_vocab"),
        ];
        let mut header = Header(b"GGUF".to_vec());
        header.u32(3);
        header.u64(tensors.len() as u64);
        header.u64((numbers.len() + texts.len() + 1) as u64);
        for (key, text) in texts {
            header.text(key);
            header.u32(8);
            header.text(text);
        }
        for (key, number) in numbers {
            header.text(key);
            header.u32(4);
            header.u32(number);
        }
        header.text("llama.attention.layer_norm_rms_epsilon");
        header.u32(6);
        header.0.extend(1e-5_f32.to_le_bytes());
        let mut offset = 0;
        for tensor in tensors {
            header.text(&tensor.name);
            header.u32(if tensor.rows.is_some() { 2 } else { 1 });
            header.u64(u64::from(tensor.columns));
            tensor.rows.into_iter().for_each(|rows| header.u64(u64::from(rows)));
            header.u32(if tensor.rows.is_some() { self.weights.layout().0 } else { F32 });
            header.u64(offset);
            offset += tensor.bytes(self.weights).next_multiple_of(ALIGNMENT);
        }
        header.0
    }
}

struct Header(Vec<u8>);

impl Header {
    fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
    }
}

fn pad(to: &mut impl Write, written: u64) -> io::Result<()> {
    let missing = written.next_multiple_of(ALIGNMENT) - written;
    to.write_all(&[0; ALIGNMENT as usize][..missing as usize])
}

/// Xorshift: the same file each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> [u8; 8] {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_bytes_that_its_header_announces() {
        let mut file = Vec::new();
        TINY.write(&mut file).unwrap();
        assert_eq!(&file[..8], b"GGUF\x03\0\0\0");
        let tensors = TINY.tensors();
        let header = (TINY.header(&tensors).len() as u64).next_multiple_of(ALIGNMENT);
        let data: u64 =
            tensors.iter().map(|tensor| tensor.bytes(TINY.weights).next_multiple_of(ALIGNMENT)).sum();
        assert_eq!(file.len() as u64, header + data);
        // The embeddings come first: blocks of a factor and 32 signed bytes.
        let first = &file[header as usize..][..34];
        assert_eq!(first[..2], TINY.weights.factor());
        assert!(first[2..].iter().any(|&byte| byte != first[2]));
    }

    #[test]
    fn shapes_have_the_parameters_of_their_names() {
        let parameters = |shape: &Shape| -> u64 {
            let count = |tensor: &Planned| u64::from(tensor.columns) * u64::from(tensor.rows.unwrap_or(1));
            shape.tensors().iter().map(count).sum()
        };
        assert_eq!(parameters(&BILLION) / 10_000_000, 103); // its output shares the embeddings' matrix
        assert_eq!(parameters(&THREE_BILLION) / 10_000_000, 321);
    }
}
