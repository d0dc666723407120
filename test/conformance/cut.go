package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// A log or an exec that is open when syncloop is killed is cut off, as it is when a kubelet is killed: its TLS
// connection ends with the process. Most helpers of the suite do not retry it. So a spec that failed for this reason is
// run again, also while processes are killed. Any other failure counts, including a refused connection that the failure
// mentions.

const (
	// cutWithin is the longest time between the kill and the failure of such a spec.
	cutWithin = 5 * time.Second
	// mostRepeats is how often such a spec is run again. A cut in each run is unlikely and points to another fault.
	mostRepeats = 2
)

// cutText matches failures that mention a connection that ended. The last two alternatives hide the reason: a client of
// an API server whose request for a log was cut off, and a spec that does not print the error of its exec.
var cutText = regexp.MustCompile(`\bEOF\b|connection reset by peer|broken pipe|close 1006|stream error` +
	`|an error on the server \("unknown"\)|expected to be able to verify file`)

// failure is a failed spec.
type failure struct {
	Name, Message string
	At            time.Time
}

// readFailures reads ginkgo's report in JSON.
func readFailures(path string) ([]failure, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			Failure                 *struct {
				Message          string
				TimelineLocation struct{ Time time.Time }
			}
			State string
		}
	}
	if err := json.Unmarshal(content, &suites); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	var failures []failure
	for _, suite := range suites {
		for _, spec := range suite.SpecReports {
			if spec.LeafNodeType != "It" || spec.State != "failed" || spec.Failure == nil {
				continue
			}
			failures = append(failures, failure{
				Name:    strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " "),
				Message: spec.Failure.Message, At: spec.Failure.TimelineLocation.Time,
			})
		}
	}
	return failures, nil
}

// readKills reads the times at which a service was killed from kills.log.
func readKills(path string, service nodeconfig.Service) ([]time.Time, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	var kills []time.Time
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		at, what, _ := strings.Cut(lines.Text(), " ")
		if !strings.HasPrefix(what, "killed "+string(service)+",") {
			continue
		}
		kill, err := time.Parse(killTime, at)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		kills = append(kills, kill)
	}
	return kills, lines.Err()
}

// cutOff returns the specs that had a stream cut off by a kill.
func cutOff(failures []failure, kills []time.Time) []string {
	var names []string
	for _, f := range failures {
		for _, kill := range kills {
			if since := f.At.Sub(kill); since >= 0 && since <= cutWithin && cutText.MatchString(f.Message) {
				names = append(names, f.Name)
				break
			}
		}
	}
	return names
}

// exactly returns the regular expression that selects specs by their whole names. Ginkgo matches it against the name
// with a prefix.
func exactly(names []string) string {
	quoted := make([]string, 0, len(names))
	for _, name := range names {
		quoted = append(quoted, regexp.QuoteMeta(name))
	}
	return "(" + strings.Join(quoted, "|") + ")$"
}

// repeatCut runs the specs again that had a stream cut off in a run with kills, and returns all outcomes.
func repeatCut(ctx context.Context, stdout io.Writer, o options, result outcomes) (outcomes, error) {
	dir := filepath.Join(o.out, nodeKilled)
	for n := 1; n <= mostRepeats; n++ {
		failures, err := readFailures(filepath.Join(dir, jsonFile))
		if err != nil {
			return nil, err
		}
		kills, err := readKills(filepath.Join(dir, killsFile), nodeconfig.SyncLoop)
		if err != nil {
			return nil, err
		}
		names := cutOff(failures, kills)
		if len(names) == 0 {
			break
		}
		fmt.Fprintf(stdout, "%s: running again, because a kill of syncloop cut off a log or an exec:\n", nodeKilled)
		for _, name := range names {
			fmt.Fprintf(stdout, "  %s\n      %s\n", name, result[name].Why)
		}
		again := o
		again.focus, again.out = exactly(names), filepath.Join(dir, fmt.Sprintf("again-%d", n))
		repeated, err := runNode(ctx, again, nodeKilled)
		if err != nil {
			return nil, err
		}
		for name, one := range repeated {
			one.Repeats = n
			result[name] = one
		}
		dir = filepath.Join(again.out, nodeKilled)
	}
	return result, nil
}
