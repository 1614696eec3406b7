//! Where the tensors of a model's file lie: as much of GGUF as that takes. The file may be anything.

use ferry_protocol::limits::DIMS;
use ferry_protocol::types::TensorType;
use std::io::{BufRead, Read, sink};

/// What a GGUF file starts with.
const MAGIC: [u8; 4] = *b"GGUF";
/// Versions in which all counts have 64 bits. The first had 32; its files are from before August 2023.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
/// Bytes in front of the data: names, vocabularies, chat templates. Real ones have some tens of MiB.
const METADATA_BYTES_MAX: u64 = 256 << 20;
/// Tensors of a file. The largest mixtures of experts have a few thousand.
const TENSORS_MAX: u64 = 64 << 10;
/// Bytes of a tensor's name; ggml's has 64.
const NAME_BYTES_MAX: u64 = 1024;
/// Arrays within arrays; nobody has written any yet.
const ARRAY_DEPTH_MAX: u32 = 4;
/// Where tensors start if the file does not say otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The key of what the file says otherwise.
const ALIGNMENT_KEY: &str = "general.alignment";

/// Why a file is no model.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// It cannot be read, or ends too early.
    #[error("it cannot be read, or ends within its header")]
    Io(#[from] std::io::Error),
    /// Something else altogether.
    #[error("it is not a GGUF file (it does not start with \"GGUF\")")]
    Magic,
    /// A version that is not known.
    #[error(
        "it is GGUF of version {0} (or of a machine with the other byte order); versions 2 and 3 are known"
    )]
    Version(u32),
    /// A number beyond its limit.
    #[error("its header has {what} {found}; at most {max} are allowed")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many.
        found: u64,
        /// How many may be.
        max: u64,
    },
    /// A value of a type that is not known.
    #[error("its header has a value of the unknown type {0}")]
    ValueType(u32),
    /// An alignment that is no power of two.
    #[error("its alignment is {0}")]
    Alignment(u64),
    /// A shape that its type does not have, or that is too large for any file.
    #[error("its tensor {0:?} has an impossible shape")]
    Shape(String),
    /// Data where there is none, or data that tensors share.
    #[error("its tensors have more data than the file, which has {0} bytes: is it complete?")]
    Incomplete(u64),
}

/// A tensor's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorData {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What is in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tensors {
    /// Its tensors.
    pub known: Vec<TensorData>,
    /// Tensors of types that this build does not know: it cannot tell how long they are.
    pub unknown: usize,
}

/// The tensors of a file of `file_bytes`. All of them together have no more bytes than the file.
pub fn tensors(file: impl BufRead, file_bytes: u64) -> Result<Tensors, GgufError> {
    let mut header = Header { file: file.take(METADATA_BYTES_MAX), alignment: DEFAULT_ALIGNMENT };
    if header.bytes::<4>()? != MAGIC {
        return Err(GgufError::Magic);
    }
    let version = header.u32()?;
    if !VERSIONS.contains(&version) {
        return Err(GgufError::Version(version));
    }
    let count = header.count("tensors", TENSORS_MAX)?;
    for _ in 0..header.count("values", METADATA_BYTES_MAX)? {
        header.pair()?;
    }
    let infos = (0..count).map(|_| header.info()).collect::<Result<Vec<_>, _>>()?;
    let start = header.read_so_far().next_multiple_of(header.alignment);
    place(infos, start, file_bytes)
}

/// A tensor as the header has it: bytes from the start of the data, and how many; `None` for an unknown type.
type Info = (u64, Option<u64>);

fn place(infos: Vec<Info>, start: u64, file_bytes: u64) -> Result<Tensors, GgufError> {
    let (mut tensors, mut all) = (Tensors::default(), 0_u64);
    for (offset, bytes) in infos {
        let Some(bytes) = bytes else {
            tensors.unknown += 1;
            continue;
        };
        let incomplete = GgufError::Incomplete(file_bytes);
        let Some(offset) = start.checked_add(offset) else { return Err(incomplete) };
        let end = offset.checked_add(bytes).filter(|&end| end <= file_bytes);
        // Without this a small file could have its bytes read again and again.
        let sum = all.checked_add(bytes).filter(|&sum| sum <= file_bytes);
        let (Some(_), Some(sum)) = (end, sum) else { return Err(incomplete) };
        all = sum;
        tensors.known.push(TensorData { offset, bytes });
    }
    Ok(tensors)
}

struct Header<R> {
    file: std::io::Take<R>,
    alignment: u64,
}

impl<R: BufRead> Header<R> {
    fn read_so_far(&self) -> u64 {
        METADATA_BYTES_MAX - self.file.limit()
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn count(&mut self, what: &'static str, max: u64) -> Result<u64, GgufError> {
        let found = self.u64()?;
        if found <= max { Ok(found) } else { Err(GgufError::Limit { what, found, max }) }
    }

    fn skip(&mut self, bytes: u64) -> Result<(), GgufError> {
        let skipped = std::io::copy(&mut self.file.by_ref().take(bytes), &mut sink())?;
        if skipped == bytes {
            Ok(())
        } else {
            Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into())
        }
    }

    /// A string that is short; what is not UTF-8 is replaced.
    fn name(&mut self) -> Result<String, GgufError> {
        let len = self.count("bytes in a name", NAME_BYTES_MAX)?;
        let mut name = vec![0; len as usize];
        self.file.read_exact(&mut name)?;
        Ok(String::from_utf8_lossy(&name).into_owned())
    }

    /// A key and its value, of which only the alignment matters.
    fn pair(&mut self) -> Result<(), GgufError> {
        let (key, kind) = (self.name()?, self.u32()?);
        if key != ALIGNMENT_KEY || kind != value::U32 {
            return self.skip_value(kind, 0);
        }
        self.alignment = u64::from(self.u32()?);
        if self.alignment.is_power_of_two() { Ok(()) } else { Err(GgufError::Alignment(self.alignment)) }
    }

    fn skip_value(&mut self, kind: u32, depth: u32) -> Result<(), GgufError> {
        if let Some(bytes) = value::fixed_bytes(kind) {
            return self.skip(bytes);
        }
        match kind {
            value::STRING => {
                let len = self.count("bytes in a string", METADATA_BYTES_MAX)?;
                self.skip(len)
            }
            value::ARRAY if depth < ARRAY_DEPTH_MAX => {
                let (kind, len) = (self.u32()?, self.count("values in an array", METADATA_BYTES_MAX)?);
                match value::fixed_bytes(kind) {
                    // Both are below 2^29.
                    Some(bytes) => self.skip(bytes * len),
                    None => (0..len).try_for_each(|_| self.skip_value(kind, depth + 1)),
                }
            }
            kind => Err(GgufError::ValueType(kind)),
        }
    }

    fn info(&mut self) -> Result<Info, GgufError> {
        let name = self.name()?;
        let dims = u64::from(self.u32()?);
        if dims > DIMS as u64 {
            return Err(GgufError::Limit { what: "dimensions", found: dims, max: DIMS as u64 });
        }
        let shape = (0..dims).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        let (kind, offset) = (TensorType(self.u32()?), self.u64()?);
        let Some(row) = kind.row() else { return Ok((offset, None)) };
        let (elements, bytes) = (u64::from(row.block_elements), u64::from(row.block_bytes));
        let whole = shape.first().is_none_or(|first| first.is_multiple_of(elements));
        let all = shape.iter().try_fold(1_u64, |all, &n| all.checked_mul(n));
        match all.and_then(|all| (all / elements).checked_mul(bytes)) {
            Some(bytes) if whole => Ok((offset, Some(bytes))),
            _ => Err(GgufError::Shape(name)),
        }
    }
}

/// Types of values (`enum gguf_type`).
mod value {
    pub const U32: u32 = 4;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;

    /// Bytes of a value whose type says how many.
    pub fn fixed_bytes(kind: u32) -> Option<u64> {
        match kind {
            0 | 1 | 7 => Some(1),
            2 | 3 => Some(2),
            U32 | 5 | 6 => Some(4),
            10..=12 => Some(8),
            _ => None,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn info(name: &str, shape: &[u64], kind: u32, offset: u64) -> Vec<u8> {
        let mut bytes = string(name);
        bytes.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes
    }

    fn file(version: u32, pairs: &[Vec<u8>], infos: &[Vec<u8>], data: &[u8]) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &version.to_le_bytes()].concat();
        bytes.extend((infos.len() as u64).to_le_bytes());
        bytes.extend((pairs.len() as u64).to_le_bytes());
        bytes.extend(pairs.concat());
        bytes.extend(infos.concat());
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        bytes.extend(data);
        bytes
    }

    fn aligned_to(alignment: u32) -> Vec<u8> {
        [string(ALIGNMENT_KEY), value::U32.to_le_bytes().into(), alignment.to_le_bytes().into()].concat()
    }

    /// A file with a vocabulary and tensors of I8 with these data.
    pub fn model(tensors: &[&[u8]]) -> Vec<u8> {
        let words = ["a", "boat", ""].map(string).concat();
        let array = [&8_u32.to_le_bytes()[..], &3_u64.to_le_bytes(), &words].concat();
        let vocabulary = [string("tokens"), value::ARRAY.to_le_bytes().into(), array].concat();
        let (mut infos, mut data) = (Vec::new(), Vec::new());
        for (at, tensor) in tensors.iter().enumerate() {
            infos.push(info(&format!("blk.{at}.weight"), &[tensor.len() as u64], 24, data.len() as u64));
            data.extend_from_slice(tensor);
            data.resize(data.len().next_multiple_of(64), 0);
        }
        file(3, &[vocabulary, aligned_to(64)], &infos, &data)
    }

    fn read(bytes: &[u8]) -> Result<Tensors, GgufError> {
        tensors(bytes, bytes.len() as u64)
    }

    #[test]
    fn tensors_are_found_where_they_lie() {
        let bytes = model(&[&[1; 100], &[2; 3]]);
        let found = read(&bytes).unwrap();
        let data: Vec<&[u8]> = found
            .known
            .iter()
            .map(|tensor| &bytes[tensor.offset as usize..(tensor.offset + tensor.bytes) as usize])
            .collect();
        assert_eq!((data, found.unknown), (vec![&[1; 100][..], &[2; 3]], 0));
    }

    #[test]
    fn bytes_go_by_shape_and_type_and_unknown_types_are_left_out() {
        // Q4_0: blocks of 32 in 18 bytes.
        let infos = [info("a", &[64, 3], 2, 0), info("b", &[7], 4, 128), info("c", &[], 0, 128)];
        let found = read(&file(2, &[], &infos, &[0; 256])).unwrap();
        assert_eq!(found.known.iter().map(|tensor| tensor.bytes).collect::<Vec<_>>(), [108, 4]);
        assert_eq!((found.unknown, found.known[1].offset - found.known[0].offset), (1, 128));
    }

    #[test]
    fn whatever_is_cut_off_is_an_error() {
        let bytes = model(&[&[1; 100]]);
        for len in 0..bytes.len() - 28 {
            assert!(read(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
        }
    }

    #[test]
    fn what_is_no_model_is_named() {
        let error = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert!(error(b"PK\x03\x04 something else").contains("not a GGUF file"));
        assert!(error(&file(1, &[], &[], &[])).contains("version 1"));
        assert!(error(&file(3_u32.swap_bytes(), &[], &[], &[])).contains("byte order"));
        assert!(error(&file(3, &[aligned_to(48)], &[], &[])).contains("alignment is 48"));
        assert!(error(&file(3, &[], &[info("w", &[1; 5], 0, 0)], &[])).contains("dimensions 5"));
        assert!(error(&file(3, &[], &[info("w", &[33], 2, 0)], &[0; 64])).contains("\"w\""));
        assert!(error(&file(3, &[], &[info("w", &[1 << 40, 1 << 40], 0, 0)], &[])).contains("\"w\""));
        for (bytes, offset) in [(129, 0), (64, 65), (1, u64::MAX), (u64::MAX, 0)] {
            let bytes = file(3, &[], &[info("w", &[bytes], 24, offset)], &[0; 128]);
            assert!(error(&bytes).contains("is it complete?"), "{offset}");
        }
        let again_and_again = vec![info("w", &[128], 24, 0); 64];
        assert!(error(&file(3, &[], &again_and_again, &[0; 128])).contains("is it complete?"));
        let value = |kind: u32| [string("k"), kind.to_le_bytes().into()].concat();
        assert!(error(&file(3, &[value(13)], &[], &[])).contains("type 13"));
        let nested = [value::ARRAY.to_le_bytes(), 1_u32.to_le_bytes(), [0; 4]].concat();
        let deep = [value(value::ARRAY), nested.repeat(6)].concat();
        assert!(error(&file(3, &[deep], &[], &[])).contains("type 9"));
        let many = [&MAGIC[..], &3_u32.to_le_bytes(), &u64::MAX.to_le_bytes()].concat();
        assert!(error(&many).contains("tensors"));
    }
}
