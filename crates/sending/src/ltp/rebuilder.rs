//! The receiver's side of repair packets (FEC). It keeps symbols, and finds blocks whose missing packets can
//! be rebuilt. The transport does the coding itself; here a symbol is a byte string.

use std::collections::VecDeque;

use super::repair::{Block, MAX_BLOCK};

/// Maximum number of packets that the receiver keeps in case others of their block are lost.
const MAX_KEPT: usize = 4 * MAX_BLOCK as usize;
/// Maximum number of blocks whose repair packets the receiver keeps.
const MAX_BLOCKS: usize = 4;

/// The repair packets of a block that have arrived.
#[derive(Debug)]
struct Coming {
    block: Block,
    /// Index and symbol of each repair packet.
    repair: Vec<(u32, Vec<u8>)>,
    /// Number of symbols at the last attempt to rebuild the block.
    tried: usize,
    done: bool,
}

/// A block that can perhaps be rebuilt: as many symbols have arrived as it has packets.
#[derive(Debug)]
pub struct Rebuild<'a> {
    /// The block.
    pub block: Block,
    /// Packets that arrived, ascending: their position in the block, and the symbol that was
    /// [kept](super::Receiver::keep).
    pub packets: Vec<(u32, &'a [u8])>,
    /// Repair packets: their index and symbol.
    pub repair: Vec<(u32, &'a [u8])>,
}

/// The newest symbols that have arrived. They may be needed to rebuild other packets.
#[derive(Debug, Default)]
pub(super) struct Rebuilder {
    kept: VecDeque<(u64, Vec<u8>)>,
    blocks: VecDeque<Coming>,
    /// Whether anything has arrived since the last search for a block to rebuild.
    fresh: bool,
}

impl Rebuilder {
    /// Keeps the symbol of a packet that has arrived and may belong to a block. `write` appends the symbol.
    pub(super) fn keep(&mut self, number: u64, write: impl FnOnce(&mut Vec<u8>)) {
        self.fresh |= self.blocks.iter().any(|one| !one.done && one.block.position(number).is_some());
        let oldest = if self.kept.len() < MAX_KEPT { None } else { self.kept.pop_front() };
        let mut symbol = oldest.map_or_else(Vec::new, |(_, symbol)| symbol);
        symbol.clear();
        write(&mut symbol);
        self.kept.push_back((number, symbol));
    }

    /// Keeps a repair packet that has arrived.
    pub(super) fn repair(&mut self, block: Block, which: u32, symbol: &[u8]) {
        if block.count == 0 || block.count > MAX_BLOCK {
            return;
        }
        let known = self.blocks.iter().position(|coming| coming.block == block);
        let at = known.unwrap_or_else(|| {
            if self.blocks.len() >= MAX_BLOCKS {
                self.blocks.pop_front();
            }
            self.blocks.push_back(Coming { block, repair: Vec::new(), tried: 0, done: false });
            self.blocks.len() - 1
        });
        let Some(coming) = self.blocks.get_mut(at) else { return };
        let full = coming.repair.len() >= block.count as usize;
        if !coming.done && !full && coming.repair.iter().all(|(one, _)| *one != which) {
            coming.repair.push((which, symbol.to_vec()));
            self.fresh = true;
        }
    }

    /// The next block that can be rebuilt. A block is returned again only after another of its symbols has
    /// arrived.
    pub(super) fn poll(&mut self) -> Option<Rebuild<'_>> {
        let Self { kept, blocks, fresh } = self;
        if !*fresh {
            return None;
        }
        for coming in blocks.iter_mut().filter(|coming| !coming.done) {
            let packets = packets(kept, coming.block);
            let symbols = packets.len() + coming.repair.len();
            coming.done = packets.len() == coming.block.count as usize;
            if coming.done {
                coming.repair.clear();
            } else if symbols >= coming.block.count as usize && symbols > coming.tried {
                coming.tried = symbols;
                let repair = coming.repair.iter().map(|(which, symbol)| (*which, &symbol[..])).collect();
                return Some(Rebuild { block: coming.block, packets, repair });
            }
        }
        *fresh = false;
        None
    }

    /// Drops the repair packets of a block that was rebuilt.
    pub(super) fn done(&mut self, block: Block) {
        if let Some(coming) = self.blocks.iter_mut().find(|coming| coming.block == block) {
            (coming.done, coming.repair) = (true, Vec::new());
        }
    }

    /// Drops all symbols.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The kept packets of a block, each once, ascending.
fn packets(kept: &VecDeque<(u64, Vec<u8>)>, block: Block) -> Vec<(u32, &[u8])> {
    let mut found: Vec<(u32, &[u8])> =
        kept.iter().filter_map(|(number, symbol)| Some((block.position(*number)?, &symbol[..]))).collect();
    found.sort_unstable_by_key(|(at, _)| *at);
    found.dedup_by_key(|(at, _)| *at);
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_rng::Rng;

    const BLOCK: Block = Block { first: 10, count: 4 };

    fn keep(rebuilder: &mut Rebuilder, number: u64) {
        rebuilder.keep(number, |out| out.push(number as u8));
    }

    #[test]
    fn a_block_is_rebuilt_when_as_many_symbols_have_come_as_it_has_packets() {
        let mut rebuilder = Rebuilder::default();
        for number in [9, 13, 10, 10, 14] {
            keep(&mut rebuilder, number);
        }
        rebuilder.repair(BLOCK, 0, &[100]);
        rebuilder.repair(BLOCK, 0, &[100]);
        assert!(rebuilder.poll().is_none(), "three symbols of four");
        rebuilder.repair(BLOCK, 5, &[105]);
        let rebuild = rebuilder.poll().unwrap();
        assert_eq!((rebuild.block, rebuild.packets), (BLOCK, vec![(0, &[10][..]), (3, &[13][..])]));
        assert_eq!(rebuild.repair, [(0, &[100][..]), (5, &[105][..])]);
        assert!(rebuilder.poll().is_none(), "nothing more has come");
        keep(&mut rebuilder, 11);
        assert_eq!(rebuilder.poll().unwrap().packets.len(), 3, "with one more it may be tried again");
        rebuilder.done(BLOCK);
        rebuilder.repair(BLOCK, 6, &[106]);
        assert!(rebuilder.poll().is_none(), "it was rebuilt");
    }

    #[test]
    fn a_block_that_arrived_whole_is_not_rebuilt() {
        let mut rebuilder = Rebuilder::default();
        rebuilder.repair(BLOCK, 0, &[100]);
        for number in 10..14 {
            assert!(rebuilder.poll().is_none() || number == 13);
            keep(&mut rebuilder, number);
        }
        assert!(rebuilder.poll().is_none() && rebuilder.blocks[0].repair.is_empty());
    }

    #[test]
    fn memory_is_bounded_whatever_arrives() {
        for seed in 0..50 {
            let (mut rebuilder, mut rng) = (Rebuilder::default(), Rng::new(&[seed]));
            for _ in 0..2_000 {
                let number = rng.draw() >> rng.up_to(63);
                keep(&mut rebuilder, number);
                let count = rng.up_to(2 * u64::from(MAX_BLOCK)) as u32;
                let block = Block { first: number.wrapping_sub(rng.up_to(70)), count };
                for _ in 0..rng.up_to(4) {
                    rebuilder.repair(block, rng.draw() as u32, &[1]);
                }
                if let Some(rebuild) = rebuilder.poll() {
                    assert!(rebuild.packets.len() < rebuild.block.count as usize);
                    assert!(rebuild.packets.len() + rebuild.repair.len() >= rebuild.block.count as usize);
                }
                assert!(rebuilder.kept.len() <= MAX_KEPT && rebuilder.blocks.len() <= MAX_BLOCKS);
                assert!(rebuilder.blocks.iter().all(|one| one.repair.len() <= MAX_BLOCK as usize));
            }
        }
    }
}
