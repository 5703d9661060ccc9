package dynamo

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stator-project/stator/internal/plan"
	"github.com/stator-project/stator/test/plantest"
)

// newWorld returns a world whose engines have the committed profile.
func newWorld(t testing.TB) *plantest.World {
	t.Helper()
	rule := Rule(nil)
	return plantest.New(t, os.DirFS("../profile"), map[string]plan.Rule{
		AlgorithmThroughput: rule, AlgorithmLoad: rule, AlgorithmHybrid: rule,
	})
}

// TestRule runs testdata/plans/*.txt.
func TestRule(t *testing.T) { plantest.Run(t, "testdata/plans", newWorld) }

// TestRuleWhateverIsObserved plans for random observations with each algorithm, and with configurations that are not valid.
func TestRuleWhateverIsObserved(t *testing.T) {
	algorithms := []string{AlgorithmThroughput, AlgorithmLoad, AlgorithmHybrid}
	newWorld(t).CheckRandom(t, algorithms, func(rng *rand.Rand, m *plan.Model) {
		m.Rule = Rule(nil)
		switch rng.IntN(4) {
		case 0:
			interval, load := time.Duration(1+rng.IntN(60))*time.Second, time.Duration(1+rng.IntN(60))*time.Second
			target := []string{TargetSLA, TargetThroughput, TargetLatency, TargetLoad}[rng.IntN(4)]
			predictor := []string{"constant", "kalman", "arima", "unknown"}[rng.IntN(4)]
			m.Rule = Rule(func(c *Config) {
				c.Interval, c.LoadInterval = interval, load
				c.Target, c.Predictor = target, predictor
			})
		case 1:
			m.Rule = Rule(func(c *Config) { *c = Config{} }) // not valid
		}
	})
}
