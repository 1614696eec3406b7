//! What /proc says of other processes.

use std::fs;

/// Living processes whose parent is `parent`.
pub fn children(parent: i32) -> Vec<i32> {
    all().into_iter().filter(|&pid| stat(pid).is_some_and(|s| s.parent == parent)).collect()
}

/// `parent`'s living descendants of every generation.
pub fn descendants(parent: i32) -> Vec<i32> {
    let mut found = children(parent);
    let mut next = 0;
    while next < found.len() {
        found.extend(children(found[next]));
        next += 1;
    }
    found
}

/// Whether the process exists and is no zombie.
pub fn alive(pid: i32) -> bool {
    stat(pid).is_some()
}

/// The number of the process's threads, or 0 if it is gone.
pub fn threads(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

struct Stat {
    parent: i32,
}

fn all() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn stat(pid: i32) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold spaces: fields count from the last ')'.
    let mut fields = line.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z" && state != "X").then_some(Stat { parent })
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn a_child_is_seen_until_it_ends() {
        let me = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(super::children(me).contains(&pid) && super::descendants(me).contains(&pid));
        assert_eq!(super::threads(pid), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!super::alive(pid));
    }
}
