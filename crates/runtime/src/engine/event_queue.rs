//! [`EventQueue`] holds a client's events until the application asks for them.

use std::collections::VecDeque;
use std::sync::Mutex;

use thalweg_proto::Failure;

use crate::lock;

/// A client's events for the application, in order. The job's outcome comes last, and stays in the queue:
/// each later caller gets it again. For example, a caller may wait for a round although it already got the
/// outcome as the answer to its update.
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

    /// Sets the job's outcome. Later calls are ignored.
    pub fn finish(&self, outcome: Result<String, Failure>) {
        lock(&self.queue).outcome.get_or_insert(outcome);
    }

    /// The next event. After the last one, `finished` makes an event of the job's outcome.
    pub fn next(&self, finished: impl FnOnce(Result<String, Failure>) -> E) -> Option<E> {
        let mut queue = lock(&self.queue);
        queue.events.pop_front().or_else(|| queue.outcome.clone().map(finished))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_comes_last_and_stays() {
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
