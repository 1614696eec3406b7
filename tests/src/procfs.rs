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

/// The process's command line; nothing if it is gone.
pub fn arguments(pid: i32) -> Vec<String> {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split_terminator('\0').map(str::to_owned).collect()
}

/// What a process has used of a processor, and how often it let go of it or lost it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Clock ticks (hundredths of a second) in user and in kernel mode, of all threads.
    pub ticks: u64,
    /// Context switches of all threads: each is a wake-up.
    pub switches: u64,
}

/// What the process has used so far, or `None` if it is gone.
pub fn used(pid: i32) -> Option<Used> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let switches = |task: fs::DirEntry| -> Option<u64> {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        Some(field(&status, "voluntary_ctxt_switches:")? + field(&status, "nonvoluntary_ctxt_switches:")?)
    };
    let switches = tasks.flatten().map(switches).sum::<Option<u64>>()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // Counted from the state: user and system time are the 14th and 15th of proc(5)'s fields.
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Used { ticks, switches })
}

/// Resident memory of the process's own in KiB, if it is there: all but what it shares with others, such as an arena,
/// whose pages come as they are first used and whose size is fixed.
pub fn resident_kib(pid: i32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(field(&status, "RssAnon:")? + field(&status, "RssFile:")?)
}

/// A process's memory for which it asked for huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePages {
    /// Address space, in KiB.
    pub asked_kib: u64,
    /// What the system gave, in KiB: nothing where it has none.
    pub given_kib: u64,
}

/// What the process has of it, or `None` if it is gone.
pub fn huge_pages(pid: i32) -> Option<HugePages> {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?;
    let (mut found, mut size, mut given) = (HugePages { asked_kib: 0, given_kib: 0 }, 0, 0);
    for line in maps.lines() {
        // A mapping's flags are its last line.
        size = field(line, "Size:").unwrap_or(size);
        given = field(line, "AnonHugePages:").unwrap_or(given);
        if line.strip_prefix("VmFlags:").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hg")) {
            found = HugePages { asked_kib: found.asked_kib + size, given_kib: found.given_kib + given };
        }
    }
    Some(found)
}

/// The number of a line of a status file.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
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
    fn one_who_computes_uses_time_and_memory() {
        let me = i32::try_from(std::process::id()).unwrap();
        let before = super::used(me).unwrap();
        let started = std::time::Instant::now();
        while super::used(me).unwrap().ticks < before.ticks + 2 {
            assert!(started.elapsed().as_secs() < 60);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(super::used(me).unwrap().switches > before.switches);
        assert!(super::resident_kib(me).unwrap() > 100);
    }

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
