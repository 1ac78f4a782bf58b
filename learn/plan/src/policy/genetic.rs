//! The genetic search for the weights of the [score](super::score) (ThinkAhead paper, section 5.3). The operators and
//! numbers are those of the *artifact*, the paper's published simulator.
//!
//! An individual is a point of the triangle of non-negative weights with the sum 1. Parents are selected by roulette
//! over fitness. Crossover exchanges the parts of two parents after a cut, mutation changes a weight by up to a fifth
//! of the range, and the best individual is always kept.
//!
//! This search differs from the artifact in three points. The artifact keeps α between 0.1 and 0.2; here α is free, so
//! that the simpler policies are points of the same triangle. The artifact draws the whole first generation at random;
//! here it includes the triangle's corners and middle. The artifact draws new traces for each generation; here the
//! traces stay the same, so that the fitness of generations can be compared.

use crate::best::first_best;
use crate::policy::score::Weights;
use headstart_block::random::Random;

/// The settings of the genetic search for weights. The defaults are those of the ThinkAhead paper's artifact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Genetic {
    /// The number of individuals (candidate weights) in a generation; 0 counts as 1.
    pub population: usize,
    /// The probability, 0 to 1, that a weight of a new individual is changed at random.
    pub mutation: f64,
    /// The probability, 0 to 1, that two parents exchange some of their weights.
    pub crossover: f64,
    /// The maximum number of generations; 0 counts as 1.
    pub generations: usize,
    /// The number of consecutive generations without a better individual after which the search ends. 0: the search
    /// ends after the first generation.
    pub stale_generations: usize,
}

impl Default for Genetic {
    /// Settings of 15 individuals and at most 60 generations. The search ends after five generations without a better
    /// individual. The probabilities are 0.15 for a mutation and 0.8 for a crossover.
    fn default() -> Self {
        Self { population: 15, mutation: 0.15, crossover: 0.8, generations: 60, stale_generations: 5 }
    }
}

type Individual = [f64; 3];

const THIRD: f64 = 1.0 / 3.0;
const BEGINNING: [Individual; 4] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [THIRD; 3]];

impl Genetic {
    /// Searches for the weights with the highest `fitness`. Returns the best weights and their fitness, which
    /// may be negative. Equal seeds give equal results, if `fitness` depends only on the weights.
    pub fn search(&self, seed: u64, mut fitness: impl FnMut(Weights) -> f64) -> (Weights, f64) {
        let random = &mut Random::new(seed);
        let mut population: Vec<Individual> = BEGINNING.into();
        population.resize_with(self.population.max(1), || normal([(); 3].map(|()| random.unit())));
        let mut best: Option<(Individual, f64)> = None;
        let mut barren = 0;
        for _ in 0..self.generations.max(1) {
            let fitnesses: Vec<_> = population.iter().map(|one| fitness(weights(*one))).collect();
            let fittest = first_best(0..population.len(), |at| fitnesses[*at]);
            barren += 1;
            if let Some((at, fitness)) = fittest.filter(|found| best.is_none_or(|best| found.1 > best.1)) {
                best = Some((population[at], fitness));
                barren = 0;
            }
            if barren >= self.stale_generations {
                break;
            }
            population = self.next(&population, &fitnesses, best.map(|(one, _)| one), random);
        }
        let (one, fitness) = best.unwrap_or(([0.0, 0.0, 1.0], f64::NEG_INFINITY));
        (weights(one), fitness)
    }

    fn next(
        &self,
        population: &[Individual],
        fitnesses: &[f64],
        best: Option<Individual>,
        random: &mut Random,
    ) -> Vec<Individual> {
        // Roulette needs shares: the part that the worst has is taken off from all, except for a little, so that
        // the worst may come too.
        let worst = fitnesses.iter().copied().fold(f64::INFINITY, f64::min);
        let most = fitnesses.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let floor = if worst < 0.0 { worst - 0.1 * (most - worst) } else { 0.0 };
        let share = |fitness: &f64| (fitness - floor).max(0.0);
        let sum: f64 = fitnesses.iter().map(share).sum();
        let select = |random: &mut Random| {
            let mut drawn = random.unit() * sum;
            let chosen = fitnesses.iter().position(|fitness| {
                drawn -= share(fitness);
                drawn <= 0.0
            });
            population[chosen.unwrap_or_else(|| random.below(population.len()))]
        };
        let mut next: Vec<_> = best.into_iter().collect();
        while next.len() < self.population.max(1) {
            let (mut one, mut other) = (select(random), select(random));
            if random.unit() < self.crossover {
                for at in 1 + random.below(2)..3 {
                    std::mem::swap(&mut one[at], &mut other[at]);
                }
            }
            next.extend([one, other].map(|child| self.mutated(child, random)));
        }
        next.truncate(self.population.max(1));
        next
    }

    fn mutated(&self, mut one: Individual, random: &mut Random) -> Individual {
        for weight in &mut one {
            if random.unit() < self.mutation {
                *weight = (*weight + 0.2 * (2.0 * random.unit() - 1.0)).clamp(0.0, 1.0);
            }
        }
        normal(one)
    }
}

fn normal(one: Individual) -> Individual {
    let sum: f64 = one.iter().sum();
    if sum < 1e-9 { [THIRD; 3] } else { one.map(|weight| weight / sum) }
}

fn weights([alpha, beta, _]: Individual) -> Weights {
    Weights { alpha, beta }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn climbs_a_hill_the_same_way_each_time() {
        let hill = |weights: Weights| -(weights.alpha - 0.2).abs() - (weights.beta - 0.55).abs();
        let (found, fitness) = Genetic::default().search(1, hill);
        assert!(fitness > -0.06, "{found:?} {fitness}");
        assert_eq!(Genetic::default().search(1, hill), (found, fitness));
    }

    #[test]
    fn stops_when_nothing_gains() {
        let mut asked = 0;
        let (_, fitness) = Genetic::default().search(1, |_| {
            asked += 1;
            0.0
        });
        assert_eq!((asked, fitness), (6 * 15, 0.0));
    }
}
