package mux_test

import (
	"testing"
	"time"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

func TestMetricsOfASourceThatCannotBeRead(t *testing.T) {
	r := newRig(t)
	want := func(value float64, metric, name string) {
		t.Helper()
		metricstest.Want(t, r.registry, value, metric, "source", name)
	}
	want(0, "quartet_configmux_source_ready", "file")
	r.Set("file", source.Reading{Failed: true, Errors: []source.Error{{Path: "/file", Message: "no"}}})
	want(0, "quartet_configmux_source_ready", "file")
	want(1, "quartet_configmux_source_errors", "file")
	want(0, "quartet_configmux_source_last_read_timestamp_seconds", "file")
	want(0, "quartet_configmux_merge_duration_seconds", "file")
	r.Set("file", source.Reading{ReadAt: time.Unix(7, 0)})
	want(1, "quartet_configmux_source_ready", "file")
	want(0, "quartet_configmux_source_errors", "file")
	want(7, "quartet_configmux_source_last_read_timestamp_seconds", "file")
	want(1, "quartet_configmux_merge_duration_seconds", "file")
	want(0, "quartet_configmux_source_ready", "api")
}
