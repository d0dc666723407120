package mux_test

import (
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// sinkOf counts the forwarded readings.
type sinkOf map[string]int

func (s sinkOf) Set(name string, _ source.Reading) { s[name]++ }

func TestTheOpeningWaitsForEverySourceButNotForever(t *testing.T) {
	clk := testclock.NewFakeClock(time.Unix(0, 0))
	passed := sinkOf{}
	opening := mux.NewOpening([]source.Source{named("file"), named("http")}, passed)
	waits := func() <-chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			opening.Wait(t.Context(), time.Second, clk)
		}()
		for !clk.HasWaiters() {
			select {
			case <-done:
				return done
			default:
			}
		}
		return done
	}
	opening.Set("file", source.Reading{})
	opening.Set("file", source.Reading{})
	opening.Set("http", source.Reading{Failed: true})
	done := waits()
	select {
	case <-done:
		t.Fatal("it does not wait for the source that could not be read")
	default:
	}
	clk.Step(time.Second)
	<-done
	done = waits()
	opening.Set("http", source.Reading{})
	<-done
	if passed["file"] != 2 || passed["http"] != 2 {
		t.Errorf("passed on %v, want file 2 and http 2", passed)
	}
	mux.NewOpening(nil, passed).Wait(t.Context(), time.Hour, clk)
}
