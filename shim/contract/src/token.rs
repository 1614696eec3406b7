//! Tokens: a probe's word that this guest honours what a profile claims.
//!
//! A token is not a secret, and whoever can write it could as well leave the shim's required mode off. It
//! guards against a claim that was never tried here, or was tried under another guest build, device or
//! profile. Text, one `key=value` a line in a fixed order, closed by a checksum against damage:
//!
//! ```text
//! ferry-metal-token 1
//! guest_build=25F84
//! device_name=Apple Paravirtual device
//! device_class=AppleParavirtDevice
//! profile=llama-cpp-default@1f6c0b5a9d3e7788
//! apple_family_max=1007
//! threadgroup_memory=32768
//! checks=simdgroup_sum,simdgroup_matrix
//! checksum=aefa6dfef2946d40
//! ```

use crate::config::{Claim, decimal};
use crate::{DEVICE_CLASS, DEVICE_NAME};
use core::fmt;

const HEADER: &str = "ferry-metal-token 1";
/// Largest token read; a real one has about 300 bytes.
pub const TOKEN_LENGTH_MAX: usize = 2048;

/// What a token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// Build of the operating system that was probed.
    pub guest_build: &'a str,
    /// Name of the device that was probed.
    pub device_name: &'a str,
    /// Objective-C class of that device.
    pub device_class: &'a str,
    /// Key of the profile that was probed.
    pub profile: &'a str,
    /// Highest Apple family whose features were seen to work.
    pub family_max: u64,
    /// Threadgroup memory that was seen to work, in bytes.
    pub threadgroup_memory: u64,
    /// Names of the checks that passed, separated by commas.
    pub checks: &'a str,
}

/// Why a token is worth nothing here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// It cannot be read at all.
    Unreadable,
    /// It is longer than [`TOKEN_LENGTH_MAX`].
    TooLong,
    /// This line is not what the format wants there.
    Line(&'static str),
    /// The checksum does not fit the text.
    Damaged,
    /// It was made for something else; names the field.
    OtherThan(&'static str),
    /// The claim goes beyond what was probed; names the field.
    ClaimExceeds(&'static str),
}

impl<'a> Token<'a> {
    /// Reads a token.
    ///
    /// # Errors
    /// Anything but the exact format, or a checksum that does not fit.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, TokenError> {
        if bytes.len() > TOKEN_LENGTH_MAX {
            return Err(TokenError::TooLong);
        }
        let text = core::str::from_utf8(bytes).map_err(|_| TokenError::Line("UTF-8"))?;
        let mut lines = Lines { rest: text };
        if lines.next_line() != Some(HEADER) {
            return Err(TokenError::Line(HEADER));
        }
        let token = Self {
            guest_build: lines.value("guest_build")?,
            device_name: lines.value("device_name")?,
            device_class: lines.value("device_class")?,
            profile: lines.value("profile")?,
            family_max: lines.number("apple_family_max")?,
            threadgroup_memory: lines.number("threadgroup_memory")?,
            checks: lines.value("checks")?,
        };
        let signed = &bytes[..bytes.len() - lines.rest.len()];
        let checksum = u64::from_str_radix(lines.value("checksum")?, 16).map_err(|_| TokenError::Damaged)?;
        if !lines.rest.is_empty() {
            return Err(TokenError::Line("the end"));
        }
        if checksum != fnv1a(FNV_START, signed) {
            return Err(TokenError::Damaged);
        }
        Ok(token)
    }

    /// Does this token cover `claim` in a guest of this build?
    ///
    /// # Errors
    /// The first thing that it does not cover.
    pub fn covers(&self, claim: &Claim<'_>, guest_build: &[u8]) -> Result<(), TokenError> {
        if self.guest_build.as_bytes() != guest_build {
            return Err(TokenError::OtherThan("guest_build"));
        }
        if self.device_name != DEVICE_NAME {
            return Err(TokenError::OtherThan("device_name"));
        }
        if self.device_class != DEVICE_CLASS {
            return Err(TokenError::OtherThan("device_class"));
        }
        if claim.profile.is_some_and(|profile| profile != self.profile.as_bytes()) {
            return Err(TokenError::OtherThan("profile"));
        }
        if claim.family_max > self.family_max {
            return Err(TokenError::ClaimExceeds("apple_family_max"));
        }
        if claim.threadgroup_memory.is_some_and(|bytes| bytes > self.threadgroup_memory) {
            return Err(TokenError::ClaimExceeds("threadgroup_memory"));
        }
        Ok(())
    }

    fn write_signed(&self, f: &mut impl fmt::Write) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        writeln!(f, "guest_build={}", self.guest_build)?;
        writeln!(f, "device_name={}", self.device_name)?;
        writeln!(f, "device_class={}", self.device_class)?;
        writeln!(f, "profile={}", self.profile)?;
        writeln!(f, "apple_family_max={}", self.family_max)?;
        writeln!(f, "threadgroup_memory={}", self.threadgroup_memory)?;
        writeln!(f, "checks={}", self.checks)
    }
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sum = Summer(FNV_START);
        self.write_signed(&mut sum)?;
        self.write_signed(f)?;
        writeln!(f, "checksum={:016x}", sum.0)
    }
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let again = "run `ferry shim probe --honour` in this guest again";
        match self {
            Self::Unreadable => write!(f, "the token cannot be read; {again}"),
            Self::TooLong => write!(f, "the token is longer than {TOKEN_LENGTH_MAX} bytes; {again}"),
            Self::Line(what) => write!(f, "the token lacks {what} where it belongs; {again}"),
            Self::Damaged => write!(f, "the token's checksum does not fit; {again}"),
            Self::OtherThan(field) => write!(f, "the token was made for another {field}; {again}"),
            Self::ClaimExceeds(field) => write!(f, "the claim exceeds the {field} that was probed; {again}"),
        }
    }
}

struct Lines<'a> {
    rest: &'a str,
}

impl<'a> Lines<'a> {
    fn next_line(&mut self) -> Option<&'a str> {
        let (line, rest) = self.rest.split_once('\n')?;
        self.rest = rest;
        Some(line)
    }

    fn value(&mut self, key: &'static str) -> Result<&'a str, TokenError> {
        let line = self.next_line().ok_or(TokenError::Line(key))?;
        let value = line.strip_prefix(key).and_then(|rest| rest.strip_prefix('='));
        value.filter(|value| !value.is_empty()).ok_or(TokenError::Line(key))
    }

    fn number(&mut self, key: &'static str) -> Result<u64, TokenError> {
        decimal(self.value(key)?.as_bytes()).ok_or(TokenError::Line(key))
    }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv1a(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

struct Summer(u64);

impl fmt::Write for Summer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = fnv1a(self.0, text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::{String, ToString};

    const TOKEN: Token<'static> = Token {
        guest_build: "25F84",
        device_name: DEVICE_NAME,
        device_class: DEVICE_CLASS,
        profile: "llama@0011",
        family_max: 1007,
        threadgroup_memory: 32768,
        checks: "simdgroup_sum,simdgroup_matrix",
    };
    const GOLDEN: &str = "ferry-metal-token 1\nguest_build=25F84\ndevice_name=Apple Paravirtual device\n\
        device_class=AppleParavirtDevice\nprofile=llama@0011\napple_family_max=1007\nthreadgroup_memory=32768\n\
        checks=simdgroup_sum,simdgroup_matrix\nchecksum=aefa6dfef2946d40\n";

    fn claim(family_max: u64, threadgroup_memory: Option<u64>, profile: &'static str) -> Claim<'static> {
        Claim { family_max, threadgroup_memory, token: None, profile: Some(profile.as_bytes()) }
    }

    #[test]
    fn the_format_is_golden() {
        assert_eq!(TOKEN.to_string(), GOLDEN);
        assert_eq!(Token::parse(GOLDEN.as_bytes()), Ok(TOKEN));
    }

    #[test]
    fn every_truncation_and_every_flipped_byte_is_refused() {
        for end in 0..GOLDEN.len() {
            assert!(Token::parse(&GOLDEN.as_bytes()[..end]).is_err(), "cut at {end}");
        }
        for at in 0..GOLDEN.len() {
            let mut bytes = GOLDEN.as_bytes().to_vec();
            bytes[at] ^= 1;
            assert_ne!(Token::parse(&bytes), Ok(TOKEN), "flipped at {at}");
            // A flipped digit of the checksum itself must not pass either.
            assert!(Token::parse(&bytes).is_err(), "flipped at {at}");
        }
        assert_eq!(Token::parse(format!("{GOLDEN}x").as_bytes()), Err(TokenError::Line("the end")));
        assert_eq!(Token::parse(String::from("x").repeat(3000).as_bytes()), Err(TokenError::TooLong));
        assert_eq!(Token::parse(b"\xff"), Err(TokenError::Line("UTF-8")));
    }

    #[test]
    fn it_covers_what_was_probed_and_no_more() {
        let build = b"25F84";
        assert_eq!(TOKEN.covers(&claim(1007, Some(32768), "llama@0011"), build), Ok(()));
        assert_eq!(TOKEN.covers(&claim(1006, None, "llama@0011"), build), Ok(()));
        let exceeds = TOKEN.covers(&claim(1008, None, "llama@0011"), build);
        assert_eq!(exceeds, Err(TokenError::ClaimExceeds("apple_family_max")));
        let exceeds = TOKEN.covers(&claim(1007, Some(65536), "llama@0011"), build);
        assert_eq!(exceeds, Err(TokenError::ClaimExceeds("threadgroup_memory")));
        let other = TOKEN.covers(&claim(1007, None, "llama@0012"), build);
        assert_eq!(other, Err(TokenError::OtherThan("profile")));
        let other = TOKEN.covers(&claim(1007, None, "llama@0011"), b"25F85");
        assert_eq!(other, Err(TokenError::OtherThan("guest_build")));
        let real = Token { device_name: "Apple M1", ..TOKEN };
        let other = real.covers(&claim(1007, None, "llama@0011"), build);
        assert_eq!(other, Err(TokenError::OtherThan("device_name")));
    }
}
