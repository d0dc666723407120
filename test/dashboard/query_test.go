package dashboard

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

// check returns the errors in a query: a syntax error, or metrics that do not exist. It also returns the labels of its
// result.
func check(all map[string]metric, query string) (result []string, problems []string) {
	// Grafana replaces the variable by a duration.
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(strings.ReplaceAll(query, "$__rate_interval", "1m"))
	if err != nil {
		return nil, []string{err.Error()}
	}
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			known, ok := lookUp(all, n.Name)
			if !ok {
				problem("docs/reference/metrics.md has no %s", n.Name)
				return nil
			}
			for _, m := range n.LabelMatchers {
				if !slices.Contains(known, m.Name) {
					problem("%s has no label %s", n.Name, m.Name)
				}
			}
		case *parser.AggregateExpr:
			known, _ := labelsOf(all, n.Expr)
			for _, label := range n.Grouping {
				if !slices.Contains(known, label) {
					problem("there is no label %s to group by in %s", label, n.Expr)
				}
			}
		}
		return nil
	})
	result, _ = labelsOf(all, expr)
	return result, problems
}

// labelsOf returns the labels that the result of an expression may have; false when it has none, such as a number.
func labelsOf(all map[string]metric, node parser.Node) ([]string, bool) {
	switch n := node.(type) {
	case *parser.VectorSelector:
		return lookUp(all, n.Name)
	case *parser.AggregateExpr:
		if !n.Without {
			return n.Grouping, true
		}
	case *parser.NumberLiteral, *parser.StringLiteral:
		return nil, false
	}
	var result []string
	found := false
	for child := range parser.ChildrenIter(node) {
		if some, ok := labelsOf(all, child); ok {
			result, found = append(result, some...), true
		}
	}
	return result, found
}

func TestTheCheckFindsWhatIsWrong(t *testing.T) {
	all := map[string]metric{"quartet_took_seconds": {kind: "histogram", labels: []string{"phase"}}, "quartet_there": {kind: "gauge"}}
	for query, want := range map[string]string{
		`sum by (phase) (rate(quartet_took_seconds_count[$__rate_interval]))`:          "",
		`histogram_quantile(0.9, sum by (le) (rate(quartet_took_seconds_bucket[5m])))`: "",
		`time() - quartet_there{service="pleg"}`:                                       "",
		`quartet_took_seconds`:                                                         "has no quartet_took_seconds",
		`quartet_gone > 0`:                                                             "has no quartet_gone",
		`quartet_there{phase="x"}`:                                                     "has no label phase",
		`sum by (stage) (quartet_took_seconds_sum)`:                                    "no label stage to group by",
		`sum by (le) (rate(quartet_took_seconds_count[5m]))`:                           "no label le to group by",
		`sum(quartet_there`:                                                            "unclosed left parenthesis",
	} {
		_, problems := check(all, query)
		if got := strings.Join(problems, "; "); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", query, got, want)
		}
	}
	if result, _ := check(all, `sum by (phase) (quartet_took_seconds_sum) > 0`); !slices.Equal(result, []string{"phase"}) {
		t.Errorf("the result has the labels %v, want phase", result)
	}
}
