//! A node's driver: cuts the node's model into frames, and adds up the neighbours' models.

use super::*;

impl Party {
    pub(super) fn frames(&self, parcel: u32, wanted: &Ranges, sender: u32) -> Vec<(FrameHeader, Vec<u8>)> {
        assert_eq!(parcel & !MEAN, self.copied, "what is sent is there");
        let layout = self.node.layout_of(parcel);
        let bytes = if parcel & MEAN == 0 { &self.copy } else { &self.means };
        let mut frames = Vec::new();
        for range in wanted.iter() {
            let mut at = range.start;
            while at < range.end {
                let end = (at / u64::from(self.chunk) + 1).saturating_mul(self.chunk.into()).min(range.end);
                let payload = bytes[at as usize..end as usize].to_vec();
                let (round, length) = (parcel, (end - at) as u32);
                let chunk = ChunkHeader { job: JOB, round, sender, layout, offset: at, length };
                frames.push((FrameHeader::chunk(chunk, checksum(&payload)), payload));
                at = end;
            }
        }
        frames
    }

    pub(super) fn chunk(&mut self, now: Time, who: Neighbour, header: &FrameHeader, payload: &[u8]) {
        self.node.progress(now, who, payload.len() as u64);
        if let NodePlace::Nothing = self.node.place(now, who, &header.chunk) {
            return;
        }
        let ok = header.verify(payload).is_ok();
        let Some(taken) = self.node.stored(now, who, &header.chunk, ok) else { return };
        assert!(taken.round <= self.node.round() + 1 + self.ahead, "further ahead than is kept");
        if taken.mean {
            for range in taken.fresh {
                let from = (range.start - header.chunk.offset) as usize;
                self.means[range.start as usize..range.end as usize]
                    .copy_from_slice(&payload[from..from + range.len() as usize]);
                self.node.mean_kept(now, taken.peer, taken.round, &[range], true);
            }
            return;
        }
        if self.weighing != Weighing::Arrival {
            let whole = self.model.len() * 8;
            let staged = self.staged.entry((taken.round, taken.peer)).or_insert_with(|| vec![0; whole]);
            for range in taken.fresh {
                let from = (range.start - header.chunk.offset) as usize;
                staged[range.start as usize..range.end as usize]
                    .copy_from_slice(&payload[from..from + range.len() as usize]);
                self.node.folded(now, taken.peer, taken.round, &[range], true);
            }
            return;
        }
        let elements = self.model.len();
        let sums = self.sums.entry(taken.round).or_insert_with(|| vec![(0.0, 0.0); elements]);
        for range in taken.fresh {
            add(sums, range, header.chunk.offset, payload, taken.weight);
            self.node.folded(now, taken.peer, taken.round, &[range], true);
        }
        assert!(self.sums.len() as u32 <= self.ahead + 1, "sums of more iterations than are kept");
        self.average(now);
    }

    /// Averages the ranges of its segment to which all have contributed.
    pub(super) fn average(&mut self, now: Time) {
        while let Some((round, range)) = self.node.due() {
            if self.averages_nothing {
                self.node.averaged(now, round, range, false);
                continue;
            }
            let sums = self.sums.get_mut(&round).expect("all have contributed");
            let bytes = range.start as usize..range.end as usize;
            let elements = bytes.start / 8..bytes.end / 8;
            let (own, means) = (self.copy[bytes.clone()].chunks(8), self.means[bytes].chunks_mut(8));
            for (((sum, weight), own), mean) in sums[elements].iter_mut().zip(own).zip(means) {
                *sum += (1.0 - *weight) * f64::from_le_bytes(*own.first_chunk().unwrap());
                *weight = 1.0;
                mean.copy_from_slice(&sum.to_le_bytes());
            }
            self.passed.insert(round);
            self.node.averaged(now, round, range, true);
        }
    }

    pub(super) fn mix(&mut self, mixing: Mixing) -> (Vec<Exchange>, BTreeMap<usize, (f64, Ranges)>) {
        let Mixing { round, fresh, .. } = mixing;
        let mut used = BTreeMap::new();
        if mixing.by_segments {
            let sent = self.node.sent_ranges(round);
            for element in sent.iter().flat_map(|range| range.start / 8..range.end / 8) {
                let bytes = self.means[element as usize * 8..].first_chunk().unwrap();
                self.model[element as usize] = f64::from_le_bytes(*bytes);
            }
            self.sums.remove(&round);
        }
        for Portion { peer, weight, ranges } in self.node.portions() {
            let sums = self.sums.entry(round).or_insert_with(|| vec![(0.0, 0.0); self.model.len()]);
            ranges.iter().for_each(|range| add(sums, range, 0, &self.staged[&(round, peer)], weight));
            used.insert(peer, (weight, ranges));
        }
        if let Some(sums) = self.sums.remove(&round) {
            for (own, (sum, weight)) in self.model.iter_mut().zip(sums) {
                assert!(weight <= 1.0 + 1e-12, "a chunk counted twice: {weight}");
                *own = match weight {
                    w if w > 0.0 && fresh => sum / w,
                    w => sum + (1.0 - w) * *own,
                };
            }
        }
        let exchanges = self.node.mixed();
        self.early += self.node.dropped().0;
        // The key is the node's number, not its index in the machine.
        let by_number = |e: &Exchange| Some((number(&e.peer), used.remove(&self.places[&number(&e.peer)])?));
        let portions = exchanges.iter().filter_map(by_number).collect();
        (exchanges, portions)
    }
}

fn add(sums: &mut [(f64, f64)], range: Range, offset: u64, payload: &[u8], weight: f64) {
    for at in (range.start..range.end).step_by(8) {
        let from = (at - offset) as usize;
        let value = f64::from_le_bytes(payload[from..from + 8].try_into().unwrap());
        let sum = &mut sums[at as usize / 8];
        (sum.0, sum.1) = (sum.0 + weight * value, sum.1 + weight);
    }
}
