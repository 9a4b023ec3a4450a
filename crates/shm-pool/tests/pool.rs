//! Tests of the pool against a simple model of it, and of the writes that the kernel must refuse.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use proptest::prelude::*;
use thalweg_arena::{Access, Arena, ArenaError};
use thalweg_shm_pool::{Class, Full, Key, Name, Object, Plan, Pool, PoolError, ReadError, Reader, Slot};
use thalweg_wire::{Range, Ranges};

const NOW: Duration = Duration::ZERO;
const CLASSES: [Class; 2] = [Class { bytes: 5000, slots: 3 }, Class { bytes: 100, slots: 2 }];

fn descriptor(pool: &Pool) -> OwnedFd {
    pool.descriptor().unwrap().try_clone_to_owned().unwrap()
}

fn pool() -> (Pool, Reader) {
    let pool = Pool::new(Plan::new(&CLASSES)).unwrap();
    let reader = Reader::new(descriptor(&pool), pool.plan().clone()).unwrap();
    (pool, reader)
}

fn key(number: u64) -> Key {
    [number.to_le_bytes(), (!number).to_le_bytes()].concat().try_into().unwrap()
}

fn full(class: usize) -> Ranges {
    Ranges::full(CLASSES[class].bytes)
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Claim(usize),
    Seal(usize),
    Drop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..2_usize).prop_map(Step::Claim),
        (0..5_usize).prop_map(Step::Seal),
        (0..5_usize).prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// An object can be read by its name, with the bytes that were written, until it is dropped; after that
    /// it cannot.
    #[test]
    fn objects_are_what_was_written_until_they_are_gone(steps in steps()) {
        let (pool, reader) = pool();
        let mut slots: Vec<(usize, Slot)> = Vec::new();
        let mut objects: Vec<(usize, Object, u8)> = Vec::new();
        let mut names: HashMap<Name, bool> = HashMap::new();
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Claim(class) => {
                    let used = slots.iter().filter(|(c, _)| *c == class).count()
                        + objects.iter().filter(|(c, ..)| *c == class).count();
                    match pool.claim(class) {
                        Ok(slot) => slots.push((class, slot)),
                        Err(Full) => prop_assert_eq!(used, CLASSES[class].slots as usize),
                    }
                }
                Step::Seal(at) if at < slots.len() => {
                    let (class, slot) = slots.swap_remove(at);
                    slot.claim(Range::new(0, CLASSES[class].bytes)).unwrap().fill(number as u8);
                    let object = slot.seal(key(number), &full(class), NOW).unwrap();
                    prop_assert_eq!(names.insert(object.name(), true), None, "no name comes twice");
                    objects.push((class, object, number as u8));
                }
                Step::Drop(at) if at < objects.len() => {
                    names.insert(objects.swap_remove(at).1.name(), false);
                }
                Step::Seal(_) | Step::Drop(_) => {}
            }
            for (class, object, value) in &objects {
                let view = reader.read(&object.name()).unwrap();
                prop_assert_eq!(view.received(), &full(*class));
                prop_assert!(view.bytes().iter().all(|byte| byte == value) && view.is_still_there());
            }
            let free: usize = (0..2).map(|class| pool.free(class)).sum();
            prop_assert_eq!(free + slots.len() + objects.len(), 5);
        }
        // After its slot was used again, a dropped object cannot be found.
        drop((slots, objects));
        for (class, of) in CLASSES.iter().enumerate() {
            let all: Vec<Slot> = (0..of.slots).map(|_| pool.claim(class).unwrap()).collect();
            all.into_iter().for_each(|slot| drop(slot.seal(key(0), &Ranges::new(), NOW).unwrap()));
        }
        for name in names.keys() {
            prop_assert_eq!(reader.read(name).unwrap_err(), ReadError::Released(name.slot));
        }
    }

    /// The received ranges arrive with the object, as many as the head has room for.
    #[test]
    fn masks_travel_with_objects(borders in prop::collection::btree_set(0..5000_u64, 0..60)) {
        let borders: Vec<u64> = borders.into_iter().collect();
        let received: Ranges = borders.chunks_exact(2).map(|pair| Range::new(pair[0], pair[1])).collect();
        let (pool, reader) = pool();
        let object = pool.claim(0).unwrap().seal(key(1), &received, NOW).unwrap();
        let view = reader.read(&object.name()).unwrap();
        prop_assert_eq!(view.received(), &received);
    }
}

/// A head has room for the ranges left by datagrams of 1400 bytes if every other one is lost. More are
/// refused.
#[test]
fn a_head_has_room_for_the_pieces_of_datagrams() {
    let bytes = 8 << 20;
    let pool = Pool::new(Plan::new(&[Class { bytes, slots: 1 }])).unwrap();
    let reader = Reader::new(descriptor(&pool), pool.plan().clone()).unwrap();
    let pieces =
        |step: u64| (0..bytes / step).map(|i| Range::new(i * step, i * step + step / 2)).collect::<Ranges>();
    let object = pool.claim(0).unwrap().seal(key(1), &pieces(2 * 1400 * 2), NOW).unwrap();
    assert_eq!(reader.read(&object.name()).unwrap().received(), &pieces(2 * 1400 * 2));
    drop(object);
    let refused = pool.claim(0).unwrap().seal(key(2), &pieces(512), NOW).unwrap_err();
    assert!(
        matches!(refused, PoolError::Pieces { .. }) && refused.to_string().contains("larger chunks"),
        "{refused}"
    );
    assert_eq!(pool.free(0), 1, "the slot is empty again");
}

#[test]
fn the_kernel_refuses_every_write_but_the_nodes() {
    let (pool, _) = pool();
    let refused = Arena::of_fd(descriptor(&pool), pool.bytes(), Access::Write).unwrap_err();
    assert!(matches!(refused, ArenaError::Descriptor { .. }), "{refused}");
    let file = std::fs::File::from(descriptor(&pool));
    assert!((&file).write(b"x").is_err() && file.write_at(b"x", 0).is_err());
    assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err());
    let slot = pool.claim(0).unwrap();
    slot.claim(Range::new(0, 1)).unwrap()[0] = 1;
}

#[test]
fn a_slot_is_sealed_when_its_last_writer_has_let_go() {
    let (pool, reader) = pool();
    let slot = pool.claim(1).unwrap();
    let writer = slot.claim(Range::new(0, 50)).unwrap();
    assert!(matches!(slot.claim(Range::new(49, 60)), Err(ArenaError::Busy { .. })));
    let sealing = std::thread::spawn(move || slot.seal(key(3), &full(1), Duration::from_secs(60)));
    drop(writer);
    let object = sealing.join().unwrap().unwrap();
    assert_eq!(reader.read(&object.name()).unwrap().bytes().len(), 100);
    let slot = pool.claim(1).unwrap();
    let _writer = slot.claim(Range::new(0, 1)).unwrap();
    assert!(matches!(slot.seal(key(4), &full(1), NOW), Err(PoolError::Memory(ArenaError::Busy { .. }))));
    assert_eq!(pool.free(1), 1);
}

#[test]
fn bounds_are_checked() {
    let (pool, reader) = pool();
    let slot = pool.claim(1).unwrap();
    for part in [Range::new(0, 101), Range { start: 3, end: 2 }, Range::new(u64::MAX - 1, u64::MAX)] {
        assert!(matches!(slot.claim(part), Err(ArenaError::OutOfBounds { .. })), "{part:?}");
    }
    assert_eq!(pool.claim(2).unwrap_err(), Full);
    let name = Name { slot: 5, generation: 1, key: key(1) };
    assert_eq!(reader.read(&name).unwrap_err(), ReadError::NoSlot(5));
    assert!(Full.to_string().contains("raise staging"));
}

/// A pool larger than the available memory, which would make the kernel kill a process, or larger than u64
/// can count.
#[test]
fn a_pool_larger_than_memory_is_refused_before_any_is_taken() {
    for class in [Class { bytes: 1 << 40, slots: 1000 }, Class { bytes: u64::MAX, slots: u32::MAX }] {
        let refused = Pool::new(Plan::new(&[class])).unwrap_err();
        assert!(
            matches!(refused, PoolError::TooLarge { .. }) && refused.to_string().contains("lower staging"),
            "{refused}"
        );
    }
}

#[test]
fn a_reader_of_another_plan_is_refused() {
    let (pool, _) = pool();
    let other = Plan::new(&[Class { bytes: 5000, slots: 4 }]);
    assert!(matches!(Reader::new(descriptor(&pool), other), Err(ArenaError::Descriptor { .. })));
}
