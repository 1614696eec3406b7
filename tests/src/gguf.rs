//! Writing GGUF files (version 3): a header of values and of tensors' places, then the tensors' bytes.

use std::io::{self, Write};

/// ggml's number of 32-bit floats.
pub const F32: u32 = 0;
/// GGUF's default: where a tensor may begin.
const ALIGNMENT: u64 = 32;

/// What a key of the header has.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    U32(u32),
    F32(f32),
    Text(&'a str),
}

/// A tensor as the header announces it.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// What the architecture calls it.
    pub name: String,
    /// Elements along each dimension, the contiguous one first.
    pub shape: Vec<u64>,
    /// ggml's number of its type.
    pub kind: u32,
    /// Its size.
    pub bytes: u64,
}

impl TensorInfo {
    /// One of 32-bit floats.
    pub fn floats(name: String, shape: &[u32]) -> Self {
        let shape: Vec<u64> = shape.iter().map(|&elements| u64::from(elements)).collect();
        let bytes = shape.iter().product::<u64>() * 4;
        Self { name, shape, kind: F32, bytes }
    }

    /// Whether it has a single dimension.
    pub fn is_vector(&self) -> bool {
        self.shape.len() == 1
    }

    /// Its size with what fills it up to where the next one may begin.
    pub fn padded_bytes(&self) -> u64 {
        self.bytes.next_multiple_of(ALIGNMENT)
    }
}

/// Writes everything before the tensors' bytes, padded up to them. They follow in this order, each [`pad`]ded.
pub fn write_header(
    to: &mut impl Write,
    values: &[(&str, Value<'_>)],
    tensors: &[TensorInfo],
) -> io::Result<()> {
    let mut header = Header(b"GGUF".to_vec());
    header.u32(3);
    header.u64(tensors.len() as u64);
    header.u64(values.len() as u64);
    for (key, value) in values {
        header.text(key);
        header.value(*value);
    }
    let mut offset = 0;
    for tensor in tensors {
        header.text(&tensor.name);
        header.u32(u32::try_from(tensor.shape.len()).expect("few dimensions"));
        tensor.shape.iter().for_each(|&elements| header.u64(elements));
        header.u32(tensor.kind);
        header.u64(offset);
        offset += tensor.padded_bytes();
    }
    to.write_all(&header.0)?;
    pad(to, header.0.len() as u64)
}

/// Fills up to where a tensor may begin, after so many bytes.
pub fn pad(to: &mut impl Write, written: u64) -> io::Result<()> {
    let missing = written.next_multiple_of(ALIGNMENT) - written;
    to.write_all(&[0; ALIGNMENT as usize][..missing as usize])
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

    /// The number of its type, then the value itself.
    fn value(&mut self, value: Value<'_>) {
        match value {
            Value::U32(number) => {
                self.u32(4);
                self.u32(number);
            }
            Value::F32(number) => {
                self.u32(6);
                self.0.extend(number.to_le_bytes());
            }
            Value::Text(text) => {
                self.u32(8);
                self.text(text);
            }
        }
    }
}

/// Xorshift: the same file each time.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From the one seed there is.
    pub fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// Eight bytes more.
    pub fn next(&mut self) -> [u8; 8] {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.to_le_bytes()
    }

    /// A number from -1 to 1.
    pub fn next_float(&mut self) -> f32 {
        let [a, b, ..] = self.next();
        f32::from(i16::from_le_bytes([a, b])) / 32_768.0
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_its_values_its_tensors_and_ends_where_one_may_begin() {
        let mut file = Vec::new();
        let tensors = [TensorInfo::floats("a".into(), &[3]), TensorInfo::floats("b".into(), &[2, 5])];
        write_header(&mut file, &[("k", Value::F32(1.5)), ("t", Value::Text("xy"))], &tensors).unwrap();
        assert_eq!(&file[..8], b"GGUF\x03\0\0\0");
        assert_eq!(file[8..24], [[2, 0, 0, 0, 0, 0, 0, 0]; 2].concat()[..]);
        // A key of one letter, a float's number, 1.5.
        assert_eq!(file[24..41], *b"\x01\0\0\0\0\0\0\0k\x06\0\0\0\0\0\xc0\x3f");
        assert_eq!(file.len() % 32, 0);
        // The second tensor's offset: after the first one's 12 bytes.
        let b = file.windows(9).position(|bytes| bytes == b"\x01\0\0\0\0\0\0\0b").unwrap();
        assert_eq!(file[b + 9 + 4 + 16 + 4], 32);
    }
}
