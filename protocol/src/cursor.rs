//! Bounds-checked reading of bytes that the other side wrote. The bytes are a private copy by then.

use bytemuck::{AnyBitPattern, NoUninit};

/// Why bytes could not be read as what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CursorError {
    /// The message ends before what it must contain.
    #[error("message is {found} bytes too short for {what}")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes that were missing.
        found: usize,
    },
    /// Bytes are left over behind the last field.
    #[error("{0} bytes behind the end of the message")]
    Trailing(usize),
}

/// Reads values off the front of a byte slice.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `n` bytes; `what` names them in an error.
    pub fn bytes(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], CursorError> {
        let (head, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or(CursorError::Truncated { what, found: n.saturating_sub(self.rest.len()) })?;
        self.rest = rest;
        Ok(head)
    }

    /// The next value.
    pub fn value<T: AnyBitPattern>(&mut self, what: &'static str) -> Result<T, CursorError> {
        Ok(bytemuck::pod_read_unaligned(self.bytes(size_of::<T>(), what)?))
    }

    /// The next `n` values. `n` is checked against the bytes that are there before anything is allocated.
    pub fn values<T: AnyBitPattern + NoUninit>(
        &mut self,
        n: usize,
        what: &'static str,
    ) -> Result<Vec<T>, CursorError> {
        let len = n.checked_mul(size_of::<T>()).ok_or(CursorError::Truncated { what, found: usize::MAX })?;
        Ok(bytemuck::allocation::pod_collect_to_vec(self.bytes(len, what)?))
    }

    /// Everything that is left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Checks that nothing is left.
    pub fn finish(self) -> Result<(), CursorError> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(CursorError::Trailing(n)),
        }
    }
}

/// Reads one value that must be the whole of `bytes`.
pub fn only<T: AnyBitPattern>(bytes: &[u8], what: &'static str) -> Result<T, CursorError> {
    let mut cursor = Cursor::new(bytes);
    let value = cursor.value(what)?;
    cursor.finish()?;
    Ok(value)
}
