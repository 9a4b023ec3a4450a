//! Which of the connected clients take part in a round.

use thalweg_rng::Rng;

/// Which clients take part if a round wants fewer than are connected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Choice {
    /// The first clients by name. Free places then go to clients in the order in which they come.
    #[default]
    ByName,
    /// Clients drawn by lot, as in FedAvg (McMahan et al. 2017, algorithm 1). If a chosen client will not
    /// come back, its place goes to the next lot.
    ByLot {
        /// The job's seed. With the round's number and a client's name it determines that client's lot.
        seed: u64,
    },
}

/// The lot that a client draws in a round. The clients with the lowest lots take part.
///
/// A lot does not depend on other clients' names (rendezvous hashing, Thaler and Ravishankar 1998). So it
/// changes neither with the other clients nor with the order in which they came, and a repeated run chooses
/// the same clients.
pub(crate) fn lot(seed: u64, round: u32, name: &str) -> u64 {
    let words = name.as_bytes().chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    });
    // The length distinguishes "a" from "a\0".
    let seeds: Vec<u64> = [seed, round.into(), name.len() as u64].into_iter().chain(words).collect();
    Rng::new(&seeds).draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(seed: u64, round: u32, clients: u32, wanted: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..clients).collect();
        all.sort_by_key(|client| lot(seed, round, &format!("client-{client}")));
        all.truncate(wanted);
        all
    }

    #[test]
    fn a_lot_depends_on_seed_round_and_the_whole_name() {
        let lots = [
            lot(1, 1, "client-1"),
            lot(2, 1, "client-1"),
            lot(1, 2, "client-1"),
            lot(1, 1, "client-2"),
            lot(1, 1, "client-1\0"),
            lot(1, 1, "client-11"),
        ];
        for (i, lot) in lots.iter().enumerate() {
            assert!(lots[i + 1..].iter().all(|other| other != lot));
        }
        assert_eq!(lots[0], lot(1, 1, "client-1"));
    }

    /// In 800 rounds with 8 of 64 clients, each is chosen 100 times on average, with a standard deviation of
    /// 9.4. No client may be off by more than five deviations.
    #[test]
    fn all_are_chosen_about_equally_often() {
        for seed in (0..20).map(|n| Rng::new(&[n]).draw()).chain([0, u64::MAX]) {
            let mut times = [0_u32; 64];
            for round in 1..=800 {
                for client in chosen(seed, round, 64, 8) {
                    times[client as usize] += 1;
                }
            }
            assert!(times.iter().all(|&n| (53..=147).contains(&n)), "{seed}: {times:?}");
        }
    }

    #[test]
    fn a_missing_client_does_not_change_other_clients_lots() {
        for seed in 0..100 {
            for departed in 0..64 {
                let mut rest: Vec<u32> = (0..64).filter(|&client| client != departed).collect();
                rest.sort_by_key(|client| lot(seed, 1, &format!("client-{client}")));
                let all = chosen(seed, 1, 64, 9).into_iter().filter(|&client| client != departed);
                assert_eq!(all.take(8).collect::<Vec<_>>(), rest[..8]);
            }
        }
    }
}
