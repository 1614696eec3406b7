//! Every release of llama.cpp as a guest of every other: whole answers, and operations whose meaning changed.

use anyhow::{Result, bail, ensure};

use super::row::{Row, Tally};
use super::site::{Site, named};
use crate::artifacts::Store;
use crate::daemon::Daemon;
use crate::progress::Step;
use crate::releases::{Meaning, Release};

/// The suite whose rows are pairs of releases.
pub const PAIRS: &str = "SmolLM2 and operations one by one, every pair of releases";

/// What may be declined: an odd timestep embedding was one longer in the oldest release, on either side; and that release
/// cannot pad in front.
const DECLINED: [&str; 2] = ["timestep", "pad-before"];

/// A row for each pair: an answer, all of it computed on the host, which is the release's own if both are the same; and
/// operations that mean the same on either side, or are declined.
pub fn test(site: &Site) -> Result<Vec<Row>> {
    let store = Store::open()?;
    let model = store.model()?;
    let (releases, meaning) = (Release::all(&store)?, Meaning::compile()?);
    let names =
        releases.iter().map(|release| named(&release.name, release.bin())).collect::<Result<Vec<_>>>()?;
    let daemons = releases.iter().map(|host| Daemon::start(host.bin())).collect::<Result<Vec<_>>>()?;
    let (mut rows, mut step) = (Vec::new(), Step::begin("every release as a guest of every other"));
    for (guest, client) in releases.iter().zip(&names) {
        let native = guest.native_answer(&model)?;
        for ((host, daemon), host_name) in releases.iter().zip(&daemons).zip(&names) {
            step.update(&format!("{client} to {host_name}"));
            let same = guest.name == host.name;
            let mut tally = Tally::default();
            let answer = guest.answer_through(daemon, &model).and_then(|answer| {
                ensure!(!same || answer == native, "the answer is {answer:?}, natively {native:?}");
                Ok(())
            });
            tally.count("SmolLM2", answer);
            meanings(&mut tally, &meaning, guest, daemon);
            rows.push(site.row_between(PAIRS, (client, host_name), tally));
            crate::interrupt::check()?;
        }
    }
    step.done();
    Ok(rows)
}

fn meanings(tally: &mut Tally, meaning: &Meaning, guest: &Release, daemon: &Daemon) {
    match meaning.verdicts(guest.bin(), daemon) {
        Ok(verdicts) => verdicts.iter().for_each(|(case, verdict)| tally.count(case, means(case, verdict))),
        Err(error) => tally.count("operations", Err(error)),
    }
}

fn means(case: &str, verdict: &str) -> Result<()> {
    match verdict {
        "equal" => Ok(()),
        "declined" if DECLINED.contains(&case) => Ok(()),
        other => bail!("{other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_operations_may_be_declined_and_none_may_differ() {
        assert!(means("pad", "equal").is_ok() && means("timestep", "declined").is_ok());
        assert!(means("pad", "declined").is_err() && means("timestep", "differs").is_err());
    }
}
