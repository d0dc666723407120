package numa_test

import (
	"fmt"
	"testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/numa"
)

func nodes(count int) []numa.Node {
	var all []numa.Node
	for i := range count {
		all = append(all, numa.Node{ID: i})
	}
	return all
}

func preferred(nodes ...int) numa.Hint {
	return numa.Hint{Nodes: numa.MaskOf(nodes...), Preferred: true}
}

func possible(nodes ...int) numa.Hint { return numa.Hint{Nodes: numa.MaskOf(nodes...)} }

func TestPoliciesMergeHints(t *testing.T) {
	for name, tc := range map[string]struct {
		owners []numa.Hints
		// want has the NUMA nodes and whether the pod is admitted, by policy.
		want map[string]string
	}{
		"nobody has a preference": {
			owners: []numa.Hints{nil, {"a": nil}},
			want:   map[string]string{"best-effort": "[0 1] true", "restricted": "[0 1] true", "single-numa-node": "[] true"},
		},
		"both can have one node": {
			owners: []numa.Hints{{"a": {preferred(0), preferred(1)}}, {"b": {preferred(1), possible(0, 1)}}},
			want:   map[string]string{"best-effort": "[1] true", "restricted": "[1] true", "single-numa-node": "[1] true"},
		},
		"they need different nodes": {
			owners: []numa.Hints{{"a": {preferred(0)}}, {"b": {preferred(1)}}},
			want:   map[string]string{"best-effort": "[0 1] true", "restricted": "[0 1] false", "single-numa-node": "[] false"},
		},
		"one needs both nodes": {
			owners: []numa.Hints{{"a": {preferred(0, 1)}}, {"b": {preferred(0, 1)}}},
			want:   map[string]string{"best-effort": "[0 1] true", "restricted": "[0 1] true", "single-numa-node": "[] false"},
		},
		"one cannot be satisfied": {
			owners: []numa.Hints{{"a": {}}, {"b": {preferred(0)}}},
			want:   map[string]string{"best-effort": "[0] true", "restricted": "[0] false", "single-numa-node": "[] false"},
		},
	} {
		for policy, want := range tc.want {
			p, err := numa.New(policy, numa.Options{Maximum: 8}, nodes(2))
			if err != nil {
				t.Fatal(err)
			}
			best, ok := p.Merge(tc.owners)
			if got := fmt.Sprint(best.Nodes.Nodes(), " ", ok); got != want {
				t.Errorf("%s, %s: %s, want %s", name, policy, got, want)
			}
		}
	}
}

// TestManyHintsAreMergedAtOnce merges the hints of eight resources on a machine of eight NUMA nodes: 255^8
// combinations.
func TestManyHintsAreMergedAtOnce(t *testing.T) {
	p, err := numa.New(numa.PolicyBestEffort, numa.Options{Maximum: 8}, nodes(8))
	if err != nil {
		t.Fatal(err)
	}
	hints := numa.Hints{}
	for i := range 8 {
		numa.Subsets([]int{0, 1, 2, 3, 4, 5, 6, 7}, func(m numa.Mask) {
			name := fmt.Sprint("example.com/", i)
			hints[name] = append(hints[name], numa.Hint{Nodes: m, Preferred: m.Has(i) && m.Count() == 1})
		})
	}
	if best, ok := p.Merge([]numa.Hints{hints}); !ok || best.Preferred || best.Nodes != numa.MaskOf(0) {
		t.Errorf("the best hint is %v, want node 0 without a preference", best)
	}
}

func TestOptions(t *testing.T) {
	for want, values := range map[string]map[string]string{
		`unknown Topology Manager Policy option: "x"`:                                                      {"x": "1"},
		`bad value for option "prefer-closest-numa-nodes": strconv.ParseBool: parsing "x": invalid syntax`: {"prefer-closest-numa-nodes": "x"},
		`the minimum value of "max-allowable-numa-nodes" should not be less than 8`:                        {"max-allowable-numa-nodes": "7"},
	} {
		if _, err := numa.ParseOptions(values); err == nil || err.Error() != want {
			t.Errorf("error = %v, want %s", err, want)
		}
	}
	if _, err := numa.New(numa.PolicyRestricted, numa.Options{Maximum: 8}, nodes(9)); err == nil ||
		err.Error() != "unsupported on machines with more than 8 NUMA Nodes" {
		t.Errorf("error = %v", err)
	}
	if _, err := numa.New(numa.PolicyRestricted, numa.Options{Maximum: 8, Closest: true}, nodes(1)); err == nil {
		t.Error("a machine without distances has close nodes")
	}
}
