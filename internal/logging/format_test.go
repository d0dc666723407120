package logging_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/logging"
)

func TestJSONHasTheKeysOfKubernetes(t *testing.T) {
	var out bytes.Buffer
	before := time.Now()
	logger := slog.New(logging.Config{JSON: true}.Handler(&out)).With("service", "pleg")
	logger.Info("relisted", "pod", "shop/web", slog.Group("inner", slog.Time("time", before)))
	logger.Debug("not told")
	var line struct {
		TS                               float64
		Caller, Level, Msg, Service, Pod string
		Inner                            struct{ Time time.Time }
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%s: %v", out.String(), err)
	}
	if line.Msg != "relisted" || line.Level != "INFO" || line.Service != "pleg" || line.Pod != "shop/web" ||
		!line.Inner.Time.Equal(before) {
		t.Errorf("got %s", out.String())
	}
	if !strings.HasPrefix(line.Caller, "logging/format_test.go:") {
		t.Errorf("caller is %q, want text beginning with %q", line.Caller, "logging/format_test.go:")
	}
	if at := time.UnixMicro(int64(line.TS * 1000)); at.Before(before.Add(-time.Second)) ||
		at.After(before.Add(time.Minute)) {
		t.Errorf("ts is %v, which is %s", line.TS, at)
	}
}

// TestPartsHaveVerbositiesOfTheirOwn: this file's name is format_test, its package's directory is telemetry.
func TestPartsHaveVerbositiesOfTheirOwn(t *testing.T) {
	part := func(pattern string, verbosity int) logging.Part {
		return logging.Part{Pattern: pattern, Verbosity: verbosity}
	}
	for _, test := range []struct {
		name      string
		verbosity int
		parts     []logging.Part
		debug     bool
	}{
		{name: "none"},
		{name: "all", verbosity: 4, debug: true},
		{name: "package", parts: []logging.Part{part("logging", 4)}, debug: true},
		{name: "file", parts: []logging.Part{part("format_test", 5)}, debug: true},
		{name: "pattern", parts: []logging.Part{part("format*", 4)}, debug: true},
		{name: "another", parts: []logging.Part{part("worker", 4)}},
		{name: "less than all", verbosity: 4, parts: []logging.Part{part("logging", 0)}, debug: true}, // as klog has it
		{name: "the first that matches", parts: []logging.Part{part("logging", 2), part("*", 9)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			logger := slog.New(logging.Config{Verbosity: test.verbosity, Parts: test.parts}.Handler(&out)).
				With("a", 1).
				WithGroup("g")
			for range 2 { // the second time from the cache
				out.Reset()
				logger.Debug("a detail")
				if logged := strings.Contains(out.String(), "a detail"); logged != test.debug {
					t.Errorf("details are told: %t, want %t: %s", logged, test.debug, out.String())
				}
			}
			logger.Info("a fact")
			if !strings.Contains(out.String(), "a fact") {
				t.Errorf("what an operator needs is not told: %s", out.String())
			}
		})
	}
}
