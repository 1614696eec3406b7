//! From the constructor to a shim that waits for its device, or a reason why not.

use crate::install::{self, Prepared};
use crate::rt::Class;
use crate::{environment, ffi, report, sys};
use core::fmt;
use ferry_shim_contract::config::{self, Claim, Refusal};
use ferry_shim_contract::status::State;
use ferry_shim_contract::token::{TOKEN_LENGTH_MAX, Token, TokenError};
use ferry_shim_contract::{BASE_CLASS, BUILD_LENGTH_MAX, guest_build};

/// Why nothing was touched.
enum Trouble {
    Configuration(Refusal<'static>),
    Token(TokenError),
    NoMetal,
    AnotherCopy,
    Hook(install::Problem),
    HookInherited,
}

/// Reads the configuration and arms or installs the shim. Called once, by the constructor.
pub fn start() {
    // First of all: whatever comes of it, children are not to inherit the shim.
    environment::remove_self();
    match configure().and_then(|claim| arm(&claim)) {
        Ok(Some(class)) => install::install_once(class),
        Ok(None) => report::say(State::Armed, format_args!("{}{}", ffi::claimed(), Ignored)),
        Err(trouble) => report::say(State::Refused, format_args!("{trouble}")),
    }
}

fn configure() -> Result<Claim<'static>, Trouble> {
    let lookup = |name: &str| sys::variable(name);
    let reporting = config::reporting(&lookup).inspect_err(|_| {
        // Half-understood is not a reason to be lenient.
        report::set_required(!matches!(lookup(config::REQUIRED.name), None | Some(b"0")));
    })?;
    report::set(reporting);
    let claim = config::claim(&lookup, reporting.required)?;
    if let Some(path) = claim.token {
        check_token(path, &claim)?;
    }
    Ok(claim)
}

fn check_token(path: &[u8], claim: &Claim<'_>) -> Result<(), TokenError> {
    let mut bytes = [0; TOKEN_LENGTH_MAX + 1];
    let length = sys::read_file(path, &mut bytes).ok_or(TokenError::Unreadable)?;
    let mut build = [0; BUILD_LENGTH_MAX];
    let build = guest_build(&mut build).ok_or(TokenError::OtherThan("guest_build"))?;
    Token::parse(&bytes[..length])?.covers(claim, build)
}

/// Hooks the base class's initialiser; answers with the paravirtual class where it is loaded already.
fn arm(claim: &Claim<'_>) -> Result<Option<Class>, Trouble> {
    let base = Class::named(ffi::BASE_CLASS_NAME).ok_or(Trouble::NoMetal)?;
    let initialiser = Prepared::new(base, &ffi::INITIALISER)?;
    if !initialiser.is_owned() {
        return Err(Trouble::HookInherited);
    }
    if !ffi::mark(base) {
        return Err(Trouble::AnotherCopy);
    }
    ffi::claim(claim);
    // The hook comes before the look for the class: the driver may be loaded in between.
    initialiser.apply()?;
    Ok(Class::named(ffi::DEVICE_CLASS_NAME))
}

impl From<Refusal<'static>> for Trouble {
    fn from(refusal: Refusal<'static>) -> Self {
        Self::Configuration(refusal)
    }
}

impl From<TokenError> for Trouble {
    fn from(error: TokenError) -> Self {
        Self::Token(error)
    }
}

impl From<install::Problem> for Trouble {
    fn from(problem: install::Problem) -> Self {
        Self::Hook(problem)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration(refusal) => write!(f, "{refusal}"),
            Self::Token(error) => write!(f, "{error}"),
            Self::NoMetal => write!(f, "this process has no class {BASE_CLASS}: Metal is not loaded"),
            Self::AnotherCopy => write!(f, "another copy of the shim is at work in this process"),
            Self::Hook(problem) => write!(f, "{problem}; this macOS is not known to the shim"),
            Self::HookInherited => {
                write!(f, "{BASE_CLASS} inherits its initialiser; this macOS is not known to the shim")
            }
        }
    }
}

/// Names the reference's research hooks that are set and not supported.
struct Ignored;

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for name in config::UNSUPPORTED.iter().filter(|name| sys::variable(name).is_some()) {
            write!(f, " ignored={name}")?;
        }
        Ok(())
    }
}
