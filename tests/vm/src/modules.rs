//! Kernel modules in an order in which they can be loaded.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use object::{Object, ObjectSection};

/// A module, uncompressed.
#[derive(Debug)]
pub struct Module {
    /// Its name, with underscores.
    pub name: String,
    /// The content of its `.ko` file.
    pub image: Vec<u8>,
}

/// The modules of one kernel.
pub struct Modules {
    files: HashMap<String, PathBuf>,
    builtin: HashSet<String>,
}

impl Modules {
    /// Lists the modules below `dir` (`/lib/modules/RELEASE`).
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn open(dir: &Path) -> Result<Self> {
        let mut modules = Self { files: HashMap::new(), builtin: HashSet::new() };
        modules.scan(&dir.join("kernel"))?;
        let builtin = dir.join("modules.builtin");
        let text =
            fs::read_to_string(&builtin).with_context(|| format!("cannot read {}", builtin.display()))?;
        modules.builtin.extend(text.lines().filter_map(|line| module_name(Path::new(line))));
        Ok(modules)
    }

    fn scan(&mut self, dir: &Path) -> Result<()> {
        for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                self.scan(&path)?;
            } else if let Some(name) = module_name(&path) {
                self.files.insert(name, path);
            }
        }
        Ok(())
    }

    /// The modules `wanted` and all that they depend on, dependencies first; what is built into the kernel is
    /// left out.
    ///
    /// # Errors
    /// If the kernel has no such module.
    pub fn resolve(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let mut loaded = HashSet::new();
        let mut order = Vec::new();
        for name in wanted {
            self.visit(&name.replace('-', "_"), &mut loaded, &mut order)?;
        }
        Ok(order)
    }

    fn visit(&self, name: &str, loaded: &mut HashSet<String>, order: &mut Vec<Module>) -> Result<()> {
        if self.builtin.contains(name) || !loaded.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(path) = self.files.get(name) else { bail!("this kernel has no module {name}") };
        let image = read(path)?;
        for dependency in dependencies(&image).with_context(|| format!("in {}", path.display()))? {
            self.visit(&dependency, loaded, order)?;
        }
        order.push(Module { name: name.to_owned(), image });
        Ok(())
    }
}

/// `virtio_gpu` of `…/virtio-gpu.ko.xz`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = file.strip_suffix(".xz").unwrap_or(file).strip_suffix(".ko")?;
    Some(stem.replace('-', "_"))
}

/// A module's content; Debian compresses the modules of newer kernels.
fn read(path: &Path) -> Result<Vec<u8>> {
    let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    if path.extension().is_none_or(|extension| extension != "xz") {
        return Ok(content);
    }
    let mut image = Vec::new();
    lzma_rs::xz_decompress(&mut content.as_slice(), &mut image)
        .map_err(|error| anyhow::anyhow!("cannot decompress {}: {error:?}", path.display()))?;
    Ok(image)
}

/// The modules that `image` says it depends on.
fn dependencies(image: &[u8]) -> Result<Vec<String>> {
    let elf = object::File::parse(image)?;
    let section = elf.section_by_name(".modinfo").context("not a kernel module: no .modinfo")?;
    Ok(parse_depends(section.data()?))
}

/// Reads the `depends=` field among the NUL-terminated fields of a `.modinfo` section.
fn parse_depends(modinfo: &[u8]) -> Vec<String> {
    let fields = modinfo.split(|&byte| byte == 0).filter_map(|field| std::str::from_utf8(field).ok());
    let lists = fields.filter_map(|field| field.strip_prefix("depends="));
    let names = lists.flat_map(|list| list.split(',')).filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_dependencies_are_normalised() {
        assert_eq!(module_name(Path::new("a/virtio-gpu.ko.xz")).as_deref(), Some("virtio_gpu"));
        assert_eq!(module_name(Path::new("kernel/fs/9p/9p.ko")).as_deref(), Some("9p"));
        assert_eq!(module_name(Path::new("modules.dep")), None);
        assert_eq!(parse_depends(b"license=GPL\0depends=drm,virtio-ring\0name=x\0"), ["drm", "virtio_ring"]);
        assert!(parse_depends(b"depends=\0").is_empty());
    }
}
