//! What this build of ggml calls and numbers things, against what the protocol does.
#![allow(unsafe_code)]

use super::functions::Functions;
use ferry_protocol::meaning::{self, Release};
use ferry_protocol::ops::{GLU_OPS, OPS, Op, UNARY_OPS};
use ferry_protocol::types::{TYPES, TensorType};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};

/// The last operation of `enum ggml_op` in every build since July 2025: where the search for names ends.
const LAST_OP: &str = "GLU";
/// No build has more operations, or functions in one of them, than this.
const NUMBERS_MAX: c_int = 256;
/// Unary operations and gated linear units searched for: ggml 0.26 has 22 and 7.
const SUB_NUMBERS_MAX: c_int = 48;

/// Numbers of this build for what the protocol names.
pub struct Names {
    ops: HashMap<Op, c_int>,
    unary: Vec<Option<c_int>>,
    glu: Vec<Option<c_int>>,
    types: Vec<TensorType>,
    release: Release,
}

impl Names {
    /// Asks the library, which says that it is of this `version`.
    pub fn of(ggml: &Functions, version: Option<&str>) -> Self {
        let mut ops = HashMap::new();
        for number in 0..NUMBERS_MAX {
            let Some(name) = own_name(ggml, ggml.ggml_op_name, number) else { break };
            if let Some(op) = Op::by_name(name) {
                ops.insert(op, number);
            }
            if name == LAST_OP {
                break;
            }
        }
        let has = |name: &str| Op::by_name(name).is_some_and(|op| ops.contains_key(&op));
        let release = Release::of(version.and_then(meaning::version), has);
        Self {
            ops,
            release,
            unary: sub_numbers(ggml, ggml.ggml_unary_op_name, UNARY_OPS),
            glu: sub_numbers(ggml, ggml.ggml_glu_op_name, GLU_OPS),
            types: known_types(ggml),
        }
    }

    /// This build's number of `op`, or `None` if it lacks it.
    pub fn op(&self, op: Op) -> Option<c_int> {
        self.ops.get(&op).copied()
    }

    /// This build's number of the unary operation or gated linear unit that the protocol numbers `number`.
    pub fn sub_op(&self, op: Op, number: i32) -> Option<c_int> {
        let list = if op == Op::GLU { &self.glu } else { &self.unary };
        *list.get(usize::try_from(number).ok()?)?
    }

    /// Whether this build has `kind`, with blocks of the size that the protocol knows.
    pub fn has_type(&self, kind: TensorType) -> bool {
        self.types.contains(&kind)
    }

    /// How new it is, as far as the meaning of operations goes.
    pub fn release(&self) -> Release {
        self.release
    }

    /// How many of the protocol's operations this build has, and of how many.
    pub fn coverage(&self) -> (usize, usize) {
        (self.ops.len(), OPS.len())
    }
}

type NameOf = unsafe extern "C" fn(c_int) -> *const c_char;

/// ggml's name functions index a table without looking at its end. The table lies among others of the same kind in
/// the library's data, so a number just behind its end gives some other string of the library, or null; whether it
/// does is checked before it is read.
fn own_name(ggml: &Functions, name_of: NameOf, number: c_int) -> Option<&'static str> {
    // SAFETY: see above: the read stays within the library's data.
    let name = unsafe { name_of(number) };
    if name.is_null() || object_of(name.cast()) != object_of(ggml.ggml_op_name as *const ()) {
        return None;
    }
    // SAFETY: the address lies in the library, which stays loaded, and the strings there are terminated.
    unsafe { CStr::from_ptr(name) }.to_str().ok()
}

/// The base of the loaded object that `address` lies in; 0 for none.
fn object_of(address: *const ()) -> usize {
    // SAFETY: an all-zero `Dl_info` is valid, and dladdr writes to nothing else.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr accepts any address.
    if unsafe { libc::dladdr(address.cast(), &mut info) } == 0 { 0 } else { info.dli_fbase as usize }
}

/// For each name of `list`, its number in this build.
fn sub_numbers(ggml: &Functions, name_of: NameOf, list: &[&str]) -> Vec<Option<c_int>> {
    let mut numbers = vec![None; list.len()];
    for number in 0..SUB_NUMBERS_MAX {
        let Some(name) = own_name(ggml, name_of, number) else { break };
        // The first one counts: what follows belongs to another table. A table ends for certain at a name in lower case.
        if name.is_empty() || name.bytes().any(|byte| byte.is_ascii_lowercase()) {
            break;
        }
        if let Some(at) = list.iter().position(|known| *known == name) {
            numbers[at].get_or_insert(number);
        }
    }
    numbers
}

/// Types up to the first one whose blocks are not what they should be: numbers only ever grow at the end.
fn known_types(ggml: &Functions) -> Vec<TensorType> {
    let same = |row: &&ferry_protocol::types::TypeRow| {
        let number = row.number as c_int;
        // SAFETY: ggml indexes a table of constants in its data; a number just behind its end reads other constants
        // there, which do not fit.
        unsafe {
            (ggml.ggml_blck_size)(number) == i64::from(row.block_elements)
                && (ggml.ggml_type_size)(number) == row.block_bytes as usize
        }
    };
    TYPES.iter().take_while(same).map(|row| TensorType(row.number)).collect()
}
