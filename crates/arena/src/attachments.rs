//! Attachments: values that transports store with an arena's memory, such as its registration with a device.

use std::any::Any;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Arena, Inner};

/// The attachments of an arena: at most one value of each type.
#[derive(Default)]
pub(crate) struct Attachments(Mutex<Vec<Arc<dyn Any + Send + Sync>>>);

/// A handle to a value that is attached to an arena. The memory exists at least as long as this handle, so a
/// registration never outlives the memory that it names.
pub struct Attached<T> {
    // The fields are dropped in this order, so the value never outlives the memory.
    thing: Arc<T>,
    _memory: Arc<Inner>,
}

impl<T> Clone for Attached<T> {
    fn clone(&self) -> Self {
        Self { thing: self.thing.clone(), _memory: self._memory.clone() }
    }
}

impl<T> Deref for Attached<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.thing
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Attached<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.thing.fmt(f)
    }
}

impl Arena {
    /// Returns the attached value of this type. If there is none, `make` makes it, and it is attached.
    /// Transports store here what they have made of the memory, such as its registration with a device. The
    /// value is dropped before the memory is unmapped. It must not hold a handle of the arena, or neither
    /// would ever be dropped. `make` must not attach anything to the same arena.
    ///
    /// # Errors
    /// That of `make`; nothing is attached then.
    pub fn attach<T: Any + Send + Sync, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Attached<T>, E> {
        // If `make` panicked earlier, its value was not stored, and the list is consistent.
        let mut all = self.inner.attachments.0.lock().unwrap_or_else(PoisonError::into_inner);
        let thing = match find(&all) {
            Some(thing) => thing,
            None => {
                let thing = Arc::new(make()?);
                all.push(thing.clone());
                thing
            }
        };
        Ok(Attached { thing, _memory: self.inner.clone() })
    }

    /// The attached value of this type, if there is one.
    pub fn attachment<T: Any + Send + Sync>(&self) -> Option<Attached<T>> {
        let all = self.inner.attachments.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Attached { thing: find(&all)?, _memory: self.inner.clone() })
    }
}

fn find<T: Any + Send + Sync>(all: &[Arc<dyn Any + Send + Sync>]) -> Option<Arc<T>> {
    all.iter().find_map(|thing| thing.clone().downcast().ok())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Reads the memory when it is dropped, as a device could do that still uses the memory.
    struct Registration {
        pointer: usize,
        seen: Arc<Mutex<Vec<u8>>>,
    }

    impl Drop for Registration {
        fn drop(&mut self) {
            // SAFETY: the arena promises that the memory is still mapped.
            let byte = unsafe { *(self.pointer as *const u8) };
            self.seen.lock().unwrap().push(byte);
        }
    }

    fn register(arena: &Arena, seen: &Arc<Mutex<Vec<u8>>>) -> Attached<Registration> {
        let (pointer, seen) = (arena.as_ptr() as usize, seen.clone());
        arena.attach(|| Ok::<_, Infallible>(Registration { pointer, seen })).unwrap()
    }

    #[test]
    fn one_of_each_type_is_made_once() {
        let arena = Arena::new(64).unwrap();
        assert!(arena.attachment::<u32>().is_none());
        assert_eq!(arena.attach(|| Err::<u32, _>("no device")).unwrap_err(), "no device");
        assert!(arena.attachment::<u32>().is_none());
        assert_eq!(*arena.attach(|| Ok::<_, Infallible>(7_u32)).unwrap(), 7);
        let again = arena.clone().attach(|| -> Result<u32, Infallible> { panic!("made twice") });
        assert_eq!(*again.unwrap(), 7);
        assert_eq!(*arena.attach(|| Ok::<_, Infallible>("another type")).unwrap(), "another type");
        assert_eq!(arena.attachment::<u32>().as_deref(), Some(&7));
        assert!(Arena::new(64).unwrap().attachment::<u32>().is_none(), "that is of another arena");
    }

    #[test]
    fn attachments_go_before_the_memory() {
        let seen = Arc::default();
        let arena = Arena::new(1 << 20).unwrap();
        arena.claim(arena.range()).unwrap()[0] = 9;
        drop(register(&arena, &seen));
        assert!(seen.lock().unwrap().is_empty(), "the arena keeps it");
        let bytes = arena.lend(arena.range()).unwrap();
        drop(arena);
        assert!(seen.lock().unwrap().is_empty(), "a loan is a handle of the memory");
        drop(bytes);
        assert_eq!(*seen.lock().unwrap(), [9]);
    }

    #[test]
    fn a_handle_of_an_attachment_keeps_the_memory() {
        let seen = Arc::default();
        let arena = Arena::new(1 << 20).unwrap();
        arena.claim(arena.range()).unwrap()[0] = 5;
        let registration = register(&arena, &seen);
        drop(arena);
        let other = registration.clone();
        drop(registration);
        assert!(seen.lock().unwrap().is_empty() && other.pointer != 0);
        drop(other);
        assert_eq!(*seen.lock().unwrap(), [5]);
    }
}
