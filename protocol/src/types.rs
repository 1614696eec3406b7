//! ggml's element types. Their numbers never moved (they are written into model files), but both sides check that
//! the other's blocks have the sizes given here.

use bytemuck::{Pod, Zeroable};

/// A ggml element type (`enum ggml_type`). An open set; [`TensorType::row`] tells the known ones.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct TensorType(pub u32);

/// A row of the type table.
#[derive(Debug, PartialEq, Eq)]
pub struct TypeRow {
    /// The number in `enum ggml_type`.
    pub number: u32,
    /// What `ggml_type_name` says, in upper case.
    pub name: &'static str,
    /// Elements in a block.
    pub block_elements: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
}

macro_rules! types {
    ($($number:literal $name:ident $elements:literal $bytes:literal;)*) => {
        /// Every element type that this protocol can name (ggml 0.26).
        pub const TYPES: &[TypeRow] = &[
            $(TypeRow {
                number: $number,
                name: stringify!($name),
                block_elements: $elements,
                block_bytes: $bytes,
            },)*
        ];
    };
}

types! {
    0 F32 1 4;        1 F16 1 2;        2 Q4_0 32 18;     3 Q4_1 32 20;     6 Q5_0 32 22;
    7 Q5_1 32 24;     8 Q8_0 32 34;     9 Q8_1 32 36;     10 Q2_K 256 84;   11 Q3_K 256 110;
    12 Q4_K 256 144;  13 Q5_K 256 176;  14 Q6_K 256 210;  15 Q8_K 256 292;  16 IQ2_XXS 256 66;
    17 IQ2_XS 256 74; 18 IQ3_XXS 256 98; 19 IQ1_S 256 50; 20 IQ4_NL 32 18;  21 IQ3_S 256 110;
    22 IQ2_S 256 82;  23 IQ4_XS 256 136; 24 I8 1 1;       25 I16 1 2;       26 I32 1 4;
    27 I64 1 8;       28 F64 1 8;       29 IQ1_M 256 56;  30 BF16 1 2;      34 TQ1_0 256 54;
    35 TQ2_0 256 66;  39 MXFP4 32 17;   40 NVFP4 64 36;   41 Q1_0 128 18;   42 Q2_0 64 18;
}

impl TensorType {
    /// Bytes.
    pub const I8: Self = Self(24);
    /// Single precision.
    pub const F32: Self = Self(0);
    /// Half precision.
    pub const F16: Self = Self(1);
    /// 32 bits: indices, mostly.
    pub const I32: Self = Self(26);

    /// The row of this type, or `None` for one that nobody defined.
    pub fn row(self) -> Option<&'static TypeRow> {
        TYPES.iter().find(|row| row.number == self.0)
    }

    /// Whether elements come in blocks of more than one.
    pub fn is_quantized(self) -> bool {
        self.row().is_some_and(|row| row.block_elements > 1)
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.row() {
            Some(row) => f.write_str(row.name),
            None => write!(f, "type {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_ascending() {
        assert!(TYPES.windows(2).all(|pair| pair[0].number < pair[1].number));
    }
}
