package heartbeat

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodehealth"
)

// saidSyncLoop answers as the test sets it.
type fixedSyncLoop struct {
	enginev1.UnimplementedEngineServiceServer
	answer *enginev1.GetHealthResponse
}

func (s fixedSyncLoop) GetHealth(context.Context, *enginev1.GetHealthRequest) (*enginev1.GetHealthResponse, error) {
	return s.answer, nil
}

// TestStatesOfProcessesFromAnswers: the state of a process depends on its own work, not on the processes that it waits
// for.
func TestStatesOfProcessesFromAnswers(t *testing.T) {
	when := timestamppb.Now()
	runtime := &lifecyclev1.Runtime{Ready: true, NetworkReady: true}
	for name, test := range map[string]struct {
		pleg     *lifecyclev1.GetHealthResponse
		syncloop *enginev1.GetHealthResponse
		want     map[string]string
	}{
		"well": {&lifecyclev1.GetHealthResponse{Healthy: true, LastRelistAt: when, Runtime: runtime}, &enginev1.GetHealthResponse{Healthy: true, LastTurnAt: when}, map[string]string{}},
		"neither the runtime nor a network": {
			&lifecyclev1.GetHealthResponse{LastRelistAt: when, Reasons: []string{"the runtime does not answer"}, Runtime: &lifecyclev1.Runtime{}},
			&enginev1.GetHealthResponse{Healthy: true, LastTurnAt: when, Reasons: []string{"pleg waits for the runtime"}},
			map[string]string{},
		},
		"no network": {
			&lifecyclev1.GetHealthResponse{Healthy: true, LastRelistAt: when, Runtime: &lifecyclev1.Runtime{Ready: true}},
			&enginev1.GetHealthResponse{Healthy: true, LastTurnAt: when}, map[string]string{},
		},
		"begun": {
			&lifecyclev1.GetHealthResponse{Reasons: []string{"no relist yet"}}, &enginev1.GetHealthResponse{Reasons: []string{"no turn yet"}, ConfigmuxAway: "no pods yet"},
			map[string]string{"pleg": "no relist yet", "syncloop": "no turn yet", "configmux": "no pods yet"},
		},
		"stuck": {
			&lifecyclev1.GetHealthResponse{LastRelistAt: when, RelistOverdue: true, Reasons: []string{"the last relist",
				"took long"}, Runtime: runtime},
			&enginev1.GetHealthResponse{LastTurnAt: when, Reasons: []string{"no turn for long"}},
			map[string]string{"pleg": "the last relist; took long", "syncloop": "no turn for long"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.pleg.set(test.pleg, false)
			r.servePLEG()
			address := strings.Replace(r.plegAddress, "pleg.sock", "said.sock", 1)
			r.serve(
				address,
				func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, fixedSyncLoop{answer: test.syncloop}) },
			)
			conn := dial(t, address)
			for _, ask := range []Ask{r.cfg.AskPLEG, AskSyncLoop(conn, address)} {
				for name, trouble := range ask(t.Context()).Troubles {
					if trouble != test.want[name] {
						t.Errorf("%s: %q, want %q", name, trouble, test.want[name])
					}
				}
			}
		})
	}
}

func TestAMissingAnswerChangesNoOtherPart(t *testing.T) {
	r := newRig(t)
	w := &watcher{ask: AskSyncLoop(r.loop, ""), timeout: r.cfg.AskTimeout, clock: r.clock, changed: make(chan struct{}, 1)}
	w.once(t.Context())
	good := r.clock.Now()
	r.clock.Step(askInterval)
	w.ask = func(context.Context) Answer { return Answer{Troubles: map[string]string{"syncloop": "it is away"}} }
	w.once(t.Context())
	parts := map[string]nodehealth.Part{}
	for _, part := range w.known() {
		parts[part.Name] = part
	}
	if got := parts["syncloop"]; got.Trouble != "it is away" || !got.LastGood.Equal(good) {
		t.Errorf("of syncloop: %+v", got)
	}
	if got := parts["configmux"]; got.Trouble != "" || !got.LastGood.Equal(good) {
		t.Errorf("of configmux: %+v", got)
	}
}
