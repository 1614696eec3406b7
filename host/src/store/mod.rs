//! The model store: weights that the administrator has put on the host, so that guests which have the same need not send
//! them.
//!
//! ```text
//! DIR/NAME.gguf          the model's file, copied (or shared with the original, where the file system can)
//! DIR/NAME.gguf.index    its pieces' hashes (index.rs); a model is there when this is
//! ```
//!
//! `ferryd store add` writes, under a lock on the directory: the copy first, then the index, each under another name until
//! it is whole and on disk. Workers only read. A worker reads the indexes when its guest first asks for weights, so what is
//! added is seen by the sessions that begin afterwards.
//!
//! Nothing here can make a result wrong: what is read from a model's file is read into a worker's own memory, a piece at a
//! time, hashed there, and used only if it has the hash that the guest asked for. Otherwise the guest sends its own.
//!
//! Any guest can read what is in here, if it knows the hash of a piece: the store is for weights that all may have. It cannot
//! list, and nothing of a guest's is ever written here.
//!
//! | module | what |
//! |---|---|
//! | [`admin`] | `ferryd store`: add, list, check, remove |
//! | [`gguf`] | where a file's tensors lie |
//! | [`index`] | the pieces of a model, and the file that they are kept in |
//! | [`shelf`] | the store as a worker reads it |

pub mod admin;
mod gguf;
mod index;
mod shelf;
#[cfg(test)]
mod tests;

pub use shelf::{Shelf, Wanted};

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Models of a store. A worker keeps the file of each open.
const MODELS_MAX: usize = 256;
/// What an index is called, behind the name of its model.
const INDEX_SUFFIX: &str = ".index";

/// Opens a file to read it; a pipe or device of its name is refused, and not waited for.
fn open_regular(path: &Path) -> io::Result<File> {
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

fn index_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}{INDEX_SUFFIX}"))
}

/// The names of the models in `dir`, in their order.
fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if let Some(model) = name.strip_suffix(INDEX_SUFFIX).filter(|model| !model.is_empty()) {
            names.push(model.to_owned());
        }
    }
    names.sort();
    Ok(names)
}
