//! Takes the memory that another process gives back, and tells whether somebody else still writes there.
//!
//! Driven by lines on standard input, each answered by one on standard output:
//!
//! - `look`: remembers the pages that the kernel pinned for devices' buffers since the start: `watching N pages`;
//! - `fill`: fills free memory with a pattern, until it has those pages or there is no more: `filled B bytes: has M of N`;
//! - `check`: compares: `intact`, or which words changed and a failure.

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    canary::run()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("canary runs on Linux only");
    std::process::exit(1);
}

#[cfg(target_os = "linux")]
mod canary {
    use std::collections::HashSet;
    use std::fs::{self, File};
    use std::hint::black_box;
    use std::io::stdin;
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, Instant};

    use anyhow::{Context, Result, bail, ensure};

    const PAGE_BYTES: usize = 4096;
    /// No float, no index and no pointer that a host would write.
    const PATTERN: u64 = 0xc0a1_31fe_11d0_9a5e;
    /// Taken at a time.
    const CHUNK_BYTES: usize = 4 << 20;
    /// Left to the kernel and the agent.
    const RESERVE_BYTES: u64 = 8 << 20;
    /// How long to wait for more to become free: a host lets go of a worker's pages within a second.
    const PATIENCE: Duration = Duration::from_secs(3);
    /// `KPF_UNEVICTABLE` of `/proc/kpageflags`: shared memory that DRM has pinned is, and little else.
    const UNEVICTABLE: u64 = 1 << 18;

    pub fn run() -> Result<()> {
        let before = unevictable()?;
        let (mut watched, mut taken) = (HashSet::new(), Vec::new());
        println!("ready");
        for line in stdin().lines() {
            match line?.as_str() {
                "look" => {
                    watched = &unevictable()? - &before;
                    println!("watching {} pages", watched.len());
                }
                "fill" => {
                    let has = fill(&watched, &mut taken)?;
                    let bytes = taken.len() * CHUNK_BYTES;
                    println!("filled {bytes} bytes: has {has} of {}", watched.len());
                }
                "check" => return check(&taken),
                other => bail!("what is {other:?}?"),
            }
        }
        Ok(())
    }

    /// The frames of pages that cannot be evicted.
    fn unevictable() -> Result<HashSet<u64>> {
        let flags = fs::read("/proc/kpageflags").context("cannot read the pages' flags")?;
        let flags = flags.chunks_exact(8).map(|flags| u64::from_ne_bytes(flags.try_into().expect("8 bytes")));
        Ok((0..).zip(flags).filter(|(_, flags)| flags & UNEVICTABLE != 0).map(|(frame, _)| frame).collect())
    }

    /// Takes memory until it has all of `watched`, or there is no more; how many it has.
    fn fill(watched: &HashSet<u64>, taken: &mut Vec<Vec<u64>>) -> Result<usize> {
        let pagemap = File::open("/proc/self/pagemap").context("cannot read this process's page map")?;
        let (mut has, mut last) = (0, Instant::now());
        while has < watched.len() && last.elapsed() < PATIENCE {
            if available_bytes()? < RESERVE_BYTES + CHUNK_BYTES as u64 {
                // They may not be free yet.
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
            let chunk = black_box(vec![PATTERN; CHUNK_BYTES / size_of::<u64>()]);
            has += frames(&pagemap, &chunk)?.filter(|frame| watched.contains(frame)).count();
            taken.push(chunk);
            last = Instant::now();
        }
        Ok(has)
    }

    /// The frames behind memory of this process.
    fn frames(pagemap: &File, memory: &[u64]) -> Result<impl Iterator<Item = u64>> {
        let mut entries = vec![0; size_of_val(memory) / PAGE_BYTES * size_of::<u64>()];
        let first = memory.as_ptr().addr().div_ceil(PAGE_BYTES);
        pagemap.read_exact_at(&mut entries, (first * size_of::<u64>()) as u64)?;
        let entries: Vec<u64> = entries
            .chunks_exact(8)
            .map(|entry| u64::from_ne_bytes(entry.try_into().expect("8 bytes")))
            .collect();
        // Bit 63: there is a page; bits 0–54: which. All zero without CAP_SYS_ADMIN.
        let frames =
            entries.into_iter().filter(|entry| entry >> 63 != 0).map(|entry| entry & ((1 << 55) - 1));
        Ok(frames)
    }

    fn available_bytes() -> Result<u64> {
        let text = fs::read_to_string("/proc/meminfo")?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).context("no MemAvailable")?;
        Ok(kib.parse::<u64>()? * 1024)
    }

    fn check(taken: &[Vec<u64>]) -> Result<()> {
        let words = black_box(taken).iter().flatten();
        let changed: Vec<u64> = words.copied().filter(|&word| word != PATTERN).collect();
        ensure!(
            changed.is_empty(),
            "{} words changed: {:x?} …",
            changed.len(),
            &changed[..changed.len().min(8)]
        );
        println!("intact");
        Ok(())
    }
}
