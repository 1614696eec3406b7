//! Answers to questions that are asked again and again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Answers kept; a program that asks more different questions (a test of every operation) starts over.
const ANSWERS_MAX: usize = 1 << 16;

/// What was answered to which bytes.
#[derive(Debug)]
pub struct Memo<T>(Mutex<HashMap<Box<[u8]>, T>>);

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Copy> Memo<T> {
    /// The answer to `question`: the one from last time, or what `ask` says now. "No answer" is not kept.
    pub fn get_or_ask(&self, question: Vec<u8>, ask: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        if let Some(answer) = self.answers().get(question.as_slice()) {
            return Some(*answer);
        }
        // Not under the lock: others may have questions that are answered already.
        let answer = ask(&question)?;
        let mut answers = self.answers();
        if answers.len() >= ANSWERS_MAX {
            answers.clear();
        }
        answers.insert(question.into_boxed_slice(), answer);
        Some(answer)
    }

    fn answers(&self) -> std::sync::MutexGuard<'_, HashMap<Box<[u8]>, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_asked_once() {
        let memo = Memo::default();
        assert_eq!(memo.get_or_ask(b"a".to_vec(), |_| Some(1)), Some(1));
        assert_eq!(memo.get_or_ask(b"a".to_vec(), |_| unreachable!()), Some(1));
        assert_eq!(memo.get_or_ask(b"b".to_vec(), |_| None), None);
        assert_eq!(memo.get_or_ask(b"b".to_vec(), |_| Some(2)), Some(2));
    }
}
