//! The store as a worker reads it.

use super::index::{Index, PIECES_MAX};
use super::{MODELS_MAX, index_path, names, open_regular};
use ferry_protocol::limits::STORE_PIECE_BYTES;
use ferry_protocol::store::PieceHash;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A model in the store.
struct Model {
    path: PathBuf,
    file: File,
    index: Index,
    /// Said once; the guest sends what is damaged, and everything goes on.
    damage_said: bool,
}

/// The models of a directory, from the first time on that something is looked for.
pub struct Shelf {
    dir: PathBuf,
    models: Option<Vec<Model>>,
    /// What was read last.
    bytes: Vec<u8>,
}

impl Shelf {
    /// The store in `dir`, which nobody has looked at yet.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, models: None, bytes: Vec::new() }
    }

    /// A piece of this hash and length: a private copy, which was hashed. `None` if there is none, or none that is whole.
    ///
    /// # Panics
    /// If no piece is that long.
    pub fn find(&mut self, hash: PieceHash, bytes: usize) -> Option<&[u8]> {
        assert!(bytes <= STORE_PIECE_BYTES);
        self.bytes.resize(bytes, 0);
        let models = self.models.get_or_insert_with(|| open(&self.dir));
        let found = models.iter_mut().any(|model| model.read(hash, &mut self.bytes));
        found.then_some(&self.bytes)
    }
}

impl Model {
    fn open(dir: &Path, name: &str) -> Result<Self, String> {
        let index = Index::read(&index_path(dir, name)).map_err(|error| format!("its index {error}"))?;
        let path = dir.join(name);
        let file = open_regular(&path).map_err(|error| error.to_string())?;
        Ok(Self { path, file, index, damage_said: false })
    }

    /// Reads a piece of this hash into `out`; whether there is one that is what it should be.
    fn read(&mut self, hash: PieceHash, out: &mut [u8]) -> bool {
        let (mut found, mut damage) = (false, None);
        for piece in self.index.find(hash, out.len()) {
            let read = self.file.read_exact_at(out, piece.offset);
            found = read.is_ok() && PieceHash::of(out) == hash;
            if found {
                break;
            }
            let what = read.map_or_else(|error| error.to_string(), |()| "not what they were".to_owned());
            damage = Some(format!("the bytes from {} on: {what}", piece.offset));
        }
        if let Some(damage) = damage.filter(|_| !std::mem::replace(&mut self.damage_said, true)) {
            let model = self.path.display();
            tracing::warn!("{model} is damaged: {damage}; guests send theirs instead. Add it again");
        }
        found
    }
}

/// Opens every model that can be; the others get a line in the log.
fn open(dir: &Path) -> Vec<Model> {
    let names = names(dir).unwrap_or_else(|error| {
        tracing::warn!("cannot look into the model store {}: {error}", dir.display());
        Vec::new()
    });
    let (mut models, mut pieces) = (Vec::new(), 0);
    for name in names {
        let model = match Model::open(dir, &name) {
            Ok(model) => model,
            Err(error) => {
                tracing::warn!("{} is not used: {error}", dir.join(&name).display());
                continue;
            }
        };
        pieces += model.index.pieces().len();
        if models.len() == MODELS_MAX || pieces > PIECES_MAX {
            tracing::warn!(
                "{} and what follows is not used: the model store is too large",
                model.path.display()
            );
            break;
        }
        models.push(model);
    }
    models
}
