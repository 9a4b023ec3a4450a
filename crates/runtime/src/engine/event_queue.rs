//! [`EventQueue`] holds a client's events until the application asks for them.

use std::collections::VecDeque;
use std::sync::Mutex;

use thalweg_proto::Failure;

use crate::lock;

/// A client's events for the application, in order. How the job ended comes last, and stays: each later caller gets it
/// again, for example one that waits for a round after the verdict on its update was that the job is over.
pub(crate) struct EventQueue<E> {
    queue: Mutex<Queue<E>>,
}

struct Queue<E> {
    events: VecDeque<E>,
    outcome: Option<Result<String, Failure>>,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { queue: Mutex::new(Queue { events: VecDeque::new(), outcome: None }) }
    }
}

impl<E> EventQueue<E> {
    /// Appends an event.
    pub fn post(&self, event: E) {
        lock(&self.queue).events.push_back(event);
    }

    /// Keeps how the job ended. Only the first call counts.
    pub fn finish(&self, outcome: Result<String, Failure>) {
        lock(&self.queue).outcome.get_or_insert(outcome);
    }

    /// The next event; after all others `finished` of how the job ended.
    pub fn next(&self, finished: impl FnOnce(Result<String, Failure>) -> E) -> Option<E> {
        let mut queue = lock(&self.queue);
        queue.events.pop_front().or_else(|| queue.outcome.clone().map(finished))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_the_job_ended_comes_last_and_stays() {
        let events = EventQueue::default();
        assert_eq!(events.next(|_| "over".to_owned()), None);
        events.post("first".to_owned());
        events.finish(Ok("done".into()));
        events.finish(Ok("closed".into()));
        let next = || events.next(|outcome| outcome.unwrap());
        assert_eq!(next().as_deref(), Some("first"));
        assert_eq!(next().as_deref(), Some("done"));
        assert_eq!(next().as_deref(), Some("done"), "each later call gets it");
    }
}
