//! Steps that are undone, last first, if a later one fails.

use anyhow::{Context, Error, Result};

type Undo<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// The steps done so far, and how to undo them.
#[derive(Default)]
pub struct Steps<'a> {
    done: Vec<(String, Undo<'a>)>,
}

impl<'a> Steps<'a> {
    /// Does one step. If it fails, everything done before it is undone; the error says what was.
    pub fn step<T>(
        &mut self,
        name: &str,
        action: impl FnOnce() -> Result<T>,
        undo: impl FnOnce() -> Result<()> + 'a,
    ) -> Result<T> {
        match action().with_context(|| format!("{name} failed")) {
            Ok(value) => {
                self.done.push((name.to_owned(), Box::new(undo)));
                Ok(value)
            }
            Err(error) => Err(self.roll_back(error)),
        }
    }

    /// Does a step that leaves nothing to undo.
    pub fn check<T>(&mut self, name: &str, action: impl FnOnce() -> Result<T>) -> Result<T> {
        self.step(name, action, || Ok(()))
    }

    fn roll_back(&mut self, error: Error) -> Error {
        let mut error = error;
        for (name, undo) in self.done.drain(..).rev() {
            error = match undo() {
                Ok(()) => error,
                Err(second) => error.context(format!("undoing '{name}' failed too: {second:#}")),
            };
        }
        error.context("rolled back")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::cell::RefCell;

    #[test]
    fn a_failure_undoes_what_was_done_in_reverse() {
        let log = RefCell::new(Vec::new());
        let mut steps = Steps::default();
        for name in ["one", "two"] {
            let log = &log;
            let undo = move || {
                log.borrow_mut().push(name);
                Ok(())
            };
            steps.step(name, || Ok(()), undo).expect("done");
        }
        let error = steps.check("three", || -> Result<()> { bail!("no") }).expect_err("failed");
        assert_eq!(*log.borrow(), ["two", "one"]);
        assert!(format!("{error:#}").contains("three failed: no"));
    }

    #[test]
    fn an_undo_that_fails_is_said_and_does_not_stop_the_others() {
        let log = RefCell::new(0);
        let mut steps = Steps::default();
        let count = || {
            *log.borrow_mut() += 1;
            Ok(())
        };
        steps.step("one", || Ok(()), count).expect("done");
        steps.step("two", || Ok(()), || bail!("stuck")).expect("done");
        let error = steps.check("three", || -> Result<()> { bail!("no") }).expect_err("failed");
        assert_eq!(*log.borrow(), 1);
        assert!(format!("{error:#}").contains("undoing 'two' failed too: stuck"));
    }
}
