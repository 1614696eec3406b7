//! The shim's configuration: environment variables, read strictly.
//!
//! A variable that is there but malformed refuses the whole configuration: an operator who asked for
//! something must not get something else in silence.

use crate::APPLE_FAMILIES;
use core::fmt;
use core::ops::RangeInclusive;

/// Ceiling of the Apple GPU families to claim, and the reference shim's name for it.
pub const FAMILY_MAX: Variable =
    Variable { name: "FERRY_METAL_APPLE_FAMILY_MAX", reference: Some("LUME_METAL_APPLE_FAMILY_MAX") };
/// Threadgroup memory to claim, in bytes, and the reference shim's name for it. Unset leaves the device's answer.
pub const THREADGROUP_MEMORY: Variable = Variable {
    name: "FERRY_METAL_MAX_THREADGROUP_MEMORY",
    reference: Some("LUME_METAL_MAX_THREADGROUP_MEMORY"),
};
/// Where status lines go: an absolute path, `fd:N`, or `stderr`. Unset: refusals go to the system log.
pub const STATUS: Variable = Variable { name: "FERRY_METAL_STATUS", reference: None };
/// `1` ends the process with [`crate::EXIT_NOT_INSTALLED`] where the shim cannot be installed; `0` does not.
pub const REQUIRED: Variable = Variable { name: "FERRY_METAL_REQUIRED", reference: None };
/// Absolute path of the token that a probe of this guest wrote. Required mode asks for it.
pub const TOKEN: Variable = Variable { name: "FERRY_METAL_TOKEN", reference: None };
/// Key (`id@digest`) of the profile that the ceiling came from; the token must name the same.
pub const PROFILE: Variable = Variable { name: "FERRY_METAL_PROFILE", reference: None };

/// Every variable of the shim, for those who set or clear them all.
pub const ALL: [Variable; 6] = [FAMILY_MAX, THREADGROUP_MEMORY, STATUS, REQUIRED, TOKEN, PROFILE];

/// Research hooks of the reference that this shim leaves out on purpose. Set, they are named in the status line.
pub const UNSUPPORTED: [&str; 2] = ["LUME_METAL_RECOMMENDED_WORKING_SET_SIZE", "LUME_METAL_PROCESS_NAME"];

/// Threadgroup memory that may be claimed, in bytes: from the 16 KiB that every Metal device has to the 64 KiB
/// that the reference claims.
pub const THREADGROUP_MEMORY_RANGE: RangeInclusive<u64> = 16_384..=65_536;
/// Metal hands out threadgroup memory in multiples of this, in bytes.
pub const THREADGROUP_MEMORY_STEP: u64 = 16;
/// Longest path taken from the environment: `PATH_MAX` of macOS.
pub const PATH_LENGTH_MAX: usize = 1024;
/// Longest profile key: an id of up to 64 characters, `@` and 16 digits fit with room.
pub const PROFILE_LENGTH_MAX: usize = 128;
/// Most of a bad value that a refusal repeats.
const SHOWN_LENGTH_MAX: usize = 32;

/// A variable under our name and, where there is one, under the reference shim's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Our name.
    pub name: &'static str,
    /// The reference shim's name, accepted so that people can switch.
    pub reference: Option<&'static str>,
}

/// Where status lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink<'a> {
    /// Refusals and failures to the system log, nothing else.
    SystemLog,
    /// Appended to this file (absolute path).
    File(&'a [u8]),
    /// Written to this open descriptor.
    Descriptor(i32),
    /// Standard error: only because somebody asked for it.
    Stderr,
}

/// What decides how loudly everything else is said; read before the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reporting<'a> {
    /// Where status lines go.
    pub sink: Sink<'a>,
    /// Whether a shim that cannot be installed ends the process.
    pub required: bool,
}

/// The answers to raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    /// Highest Apple GPU family to claim.
    pub family_max: u64,
    /// Threadgroup memory to claim, in bytes; `None` leaves the device's answer alone.
    pub threadgroup_memory: Option<u64>,
    /// Path of the probe's token.
    pub token: Option<&'a [u8]>,
    /// Key of the profile behind the claim.
    pub profile: Option<&'a [u8]>,
}

/// Why a configuration was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// The variable at fault.
    pub variable: &'static str,
    /// Its value, where it has one.
    pub value: Option<&'a [u8]>,
    /// What would have been right.
    pub wanted: Wanted,
}

/// What a refused variable should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It is mandatory.
    Present,
    /// Mandatory because the shim is required.
    PresentWhenRequired,
    /// A decimal number without sign, space or leading zero, in this range.
    Decimal(u64, u64),
    /// A multiple of this number of bytes.
    MultipleOf(u64),
    /// `0` or `1`.
    Flag,
    /// An absolute path, `fd:N` with N from 3 on, or `stderr`.
    Sink,
    /// An absolute path of at most [`PATH_LENGTH_MAX`] bytes.
    AbsolutePath,
    /// A profile key: printable ASCII without spaces, at most [`PROFILE_LENGTH_MAX`] bytes.
    ProfileKey,
    /// The same value as this other name of the same setting.
    SameAs(&'static str),
}

/// Reads who wants to hear about the rest. `lookup` answers with a variable's value.
///
/// # Errors
/// A malformed value. The caller then reports to the system log and treats the shim as required if
/// [`REQUIRED`] is set to anything but `0`.
pub fn reporting<'a>(lookup: &impl Fn(&str) -> Option<&'a [u8]>) -> Result<Reporting<'a>, Refusal<'a>> {
    let required = match lookup(REQUIRED.name) {
        None | Some(b"0") => false,
        Some(b"1") => true,
        Some(value) => return Err(refuse(REQUIRED.name, value, Wanted::Flag)),
    };
    let sink = match lookup(STATUS.name) {
        None => Sink::SystemLog,
        Some(value) => sink(value).ok_or(refuse(STATUS.name, value, Wanted::Sink))?,
    };
    Ok(Reporting { sink, required })
}

/// Reads the answers to raise.
///
/// # Errors
/// A value that is missing, malformed, out of bounds, or given twice and differently.
pub fn claim<'a>(
    lookup: &impl Fn(&str) -> Option<&'a [u8]>,
    required: bool,
) -> Result<Claim<'a>, Refusal<'a>> {
    let family_max =
        number(lookup, FAMILY_MAX, &APPLE_FAMILIES)?.ok_or(missing(FAMILY_MAX, Wanted::Present))?;
    let threadgroup_memory = number(lookup, THREADGROUP_MEMORY, &THREADGROUP_MEMORY_RANGE)?;
    if let Some(bytes) = threadgroup_memory
        && bytes % THREADGROUP_MEMORY_STEP != 0
    {
        return Err(Refusal {
            variable: THREADGROUP_MEMORY.name,
            value: value_of(lookup, THREADGROUP_MEMORY)?.map(|(_, value)| value),
            wanted: Wanted::MultipleOf(THREADGROUP_MEMORY_STEP),
        });
    }
    let token = text(lookup, TOKEN, Wanted::AbsolutePath, is_absolute_path)?;
    let profile = text(lookup, PROFILE, Wanted::ProfileKey, is_profile_key)?;
    if required && token.is_none() {
        return Err(missing(TOKEN, Wanted::PresentWhenRequired));
    }
    if required && profile.is_none() {
        return Err(missing(PROFILE, Wanted::PresentWhenRequired));
    }
    Ok(Claim { family_max, threadgroup_memory, token, profile })
}

/// A decimal number as people mean it: digits only, no sign, no space, no leading zero, no overflow.
#[must_use]
pub fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || (text.len() > 1 && text[0] == b'0') {
        return None;
    }
    text.iter().try_fold(0u64, |value, &digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

fn number<'a>(
    lookup: &impl Fn(&str) -> Option<&'a [u8]>,
    variable: Variable,
    range: &RangeInclusive<u64>,
) -> Result<Option<u64>, Refusal<'a>> {
    let Some((name, value)) = value_of(lookup, variable)? else { return Ok(None) };
    match decimal(value) {
        Some(number) if range.contains(&number) => Ok(Some(number)),
        _ => Err(refuse(name, value, Wanted::Decimal(*range.start(), *range.end()))),
    }
}

fn text<'a>(
    lookup: &impl Fn(&str) -> Option<&'a [u8]>,
    variable: Variable,
    wanted: Wanted,
    well_formed: impl Fn(&[u8]) -> bool,
) -> Result<Option<&'a [u8]>, Refusal<'a>> {
    match lookup(variable.name) {
        Some(value) if !well_formed(value) => Err(refuse(variable.name, value, wanted)),
        value => Ok(value),
    }
}

/// The variable's value and the name it was given under.
fn value_of<'a>(
    lookup: &impl Fn(&str) -> Option<&'a [u8]>,
    variable: Variable,
) -> Result<Option<(&'static str, &'a [u8])>, Refusal<'a>> {
    let ours = lookup(variable.name).map(|value| (variable.name, value));
    let theirs = variable.reference.and_then(|name| lookup(name).map(|value| (name, value)));
    match (ours, theirs) {
        (Some((_, a)), Some((name, b))) if a != b => Err(refuse(variable.name, a, Wanted::SameAs(name))),
        (ours, theirs) => Ok(ours.or(theirs)),
    }
}

fn sink(value: &[u8]) -> Option<Sink<'_>> {
    if value == b"stderr" {
        return Some(Sink::Stderr);
    }
    if let Some(number) = value.strip_prefix(b"fd:") {
        // 0, 1 and 2 belong to the program; its output is parsed by others.
        let fd = decimal(number).and_then(|fd| i32::try_from(fd).ok()).filter(|fd| *fd > 2)?;
        return Some(Sink::Descriptor(fd));
    }
    is_absolute_path(value).then_some(Sink::File(value))
}

fn is_absolute_path(value: &[u8]) -> bool {
    value.len() > 1 && value[0] == b'/' && value.len() < PATH_LENGTH_MAX
}

fn is_profile_key(value: &[u8]) -> bool {
    !value.is_empty() && value.len() <= PROFILE_LENGTH_MAX && value.iter().all(u8::is_ascii_graphic)
}

fn refuse<'a>(variable: &'static str, value: &'a [u8], wanted: Wanted) -> Refusal<'a> {
    Refusal { variable, value: Some(value), wanted }
}

fn missing<'a>(variable: Variable, wanted: Wanted) -> Refusal<'a> {
    Refusal { variable: variable.name, value: None, wanted }
}

impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            None => write!(f, "{} is not set: {}", self.variable, self.wanted),
            Some(value) => {
                let shown = &value[..value.len().min(SHOWN_LENGTH_MAX)];
                let more = if shown.len() < value.len() { "..." } else { "" };
                write!(f, "{} is '{}{more}': want {}", self.variable, shown.escape_ascii(), self.wanted)
            }
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => write!(f, "the shim claims nothing without it"),
            Self::PresentWhenRequired => {
                write!(f, "a required shim needs it; `ferry shim probe --honour` makes one")
            }
            Self::Decimal(low, high) => write!(f, "a decimal number from {low} to {high}"),
            Self::MultipleOf(step) => write!(f, "a multiple of {step}"),
            Self::Flag => write!(f, "0 or 1"),
            Self::Sink => write!(f, "an absolute path, fd:N with N from 3 on, or stderr"),
            Self::AbsolutePath => write!(f, "an absolute path shorter than {PATH_LENGTH_MAX} bytes"),
            Self::ProfileKey => write!(f, "printable ASCII without spaces, up to {PROFILE_LENGTH_MAX} bytes"),
            Self::SameAs(other) => write!(f, "the same value as {other}, or only one of the two"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn lookup<'a>(pairs: Pairs<'a>) -> impl Fn(&str) -> Option<&'a [u8]> {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_bytes())
    }

    fn refused(pairs: Pairs<'_>) -> std::string::String {
        claim(&lookup(pairs), false).expect_err("refused").to_string()
    }

    #[test]
    fn a_ceiling_alone_is_a_whole_configuration() {
        let claim = claim(&lookup(&[("FERRY_METAL_APPLE_FAMILY_MAX", "1007")]), false).expect("accepted");
        assert_eq!(claim, Claim { family_max: 1007, threadgroup_memory: None, token: None, profile: None });
    }

    #[test]
    fn the_references_names_mean_the_same() {
        let pairs = [("LUME_METAL_APPLE_FAMILY_MAX", "1009"), ("LUME_METAL_MAX_THREADGROUP_MEMORY", "32768")];
        let claim = claim(&lookup(&pairs), false).expect("accepted");
        assert_eq!((claim.family_max, claim.threadgroup_memory), (1009, Some(32768)));
    }

    #[test]
    fn two_names_must_agree() {
        let same = [("LUME_METAL_APPLE_FAMILY_MAX", "1007"), ("FERRY_METAL_APPLE_FAMILY_MAX", "1007")];
        assert!(claim(&lookup(&same), false).is_ok());
        let differ = [("LUME_METAL_APPLE_FAMILY_MAX", "1009"), ("FERRY_METAL_APPLE_FAMILY_MAX", "1007")];
        assert!(refused(&differ).contains("the same value as LUME_METAL_APPLE_FAMILY_MAX"));
    }

    #[test]
    fn families_outside_apples_are_refused() {
        for value in ["1000", "2000", "2001", "3003", "5001", "0", "18446744073709552623"] {
            assert!(
                refused(&[("FERRY_METAL_APPLE_FAMILY_MAX", value)]).contains("from 1001 to 1999"),
                "{value}"
            );
        }
    }

    #[test]
    fn numbers_are_plain_decimals() {
        for value in
            ["", " 1007", "1007 ", "+1007", "-1", "01007", "0x3ef", "1007.0", "1e3", "١٠٠٧", "1007\n"]
        {
            assert!(refused(&[("FERRY_METAL_APPLE_FAMILY_MAX", value)]).contains("decimal"), "{value:?}");
        }
    }

    #[test]
    fn memory_is_bounded_and_aligned() {
        let with = |memory| {
            refused(&[
                ("FERRY_METAL_APPLE_FAMILY_MAX", "1007"),
                ("LUME_METAL_MAX_THREADGROUP_MEMORY", memory),
            ])
        };
        for value in ["-1", "18446744073709551615", "16383", "65537", "65536000"] {
            assert!(with(value).contains("from 16384 to 65536"), "{value}");
        }
        assert!(with("32769").contains("multiple of 16"));
    }

    #[test]
    fn required_needs_token_and_profile() {
        let ceiling = ("FERRY_METAL_APPLE_FAMILY_MAX", "1007");
        let token = ("FERRY_METAL_TOKEN", "/t");
        let at_fault = |pairs: Pairs<'_>| claim(&lookup(pairs), true).expect_err("refused").variable;
        assert_eq!(at_fault(&[ceiling]), "FERRY_METAL_TOKEN");
        assert_eq!(at_fault(&[ceiling, token]), "FERRY_METAL_PROFILE");
        assert!(claim(&lookup(&[ceiling, token, ("FERRY_METAL_PROFILE", "p@1")]), true).is_ok());
    }

    #[test]
    fn sinks() {
        let sink = |value: &'static str| super::sink(value.as_bytes());
        assert_eq!(sink("stderr"), Some(Sink::Stderr));
        assert_eq!(sink("fd:7"), Some(Sink::Descriptor(7)));
        assert_eq!(sink("/tmp/s"), Some(Sink::File(b"/tmp/s")));
        for bad in ["", "fd:", "fd:2", "fd:-1", "fd:4294967299", "status", "./s", "/", "stdout"] {
            assert_eq!(sink(bad), None, "{bad}");
        }
        assert_eq!(reporting(&lookup(&[])).expect("default").sink, Sink::SystemLog);
        assert!(reporting(&lookup(&[("FERRY_METAL_STATUS", "here")])).is_err());
        assert!(reporting(&lookup(&[("FERRY_METAL_REQUIRED", "yes")])).is_err());
    }

    #[test]
    fn a_refusal_escapes_and_shortens_what_it_repeats() {
        let long = "\x1b[31m".to_string() + &"9".repeat(100);
        let text = refused(&[("FERRY_METAL_APPLE_FAMILY_MAX", &long)]);
        assert!(text.contains("\\x1b[31m99") && text.contains("...'"), "{text}");
        assert!(text.len() < 160, "{text}");
    }
}
