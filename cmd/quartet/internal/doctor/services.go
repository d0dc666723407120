package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/rpc"
)

// socketMode is the mode of every service's socket. The services authorize their peers by user ID.
const socketMode = 0o660

// othersWrite are the bits of a mode that let others than the owner write.
const othersWrite = 0o022

// hasNode reports whether a part of a node exists: a socket or a PID file.
func (p *patient) hasNode() bool {
	paths := []string{p.layout.PIDFile("quartet")}
	for _, s := range layout.Services() {
		socket := p.layout.Socket(s)
		paths = append(paths, socket, layout.EarlierSocket(socket), p.layout.PIDFile(string(s)))
	}
	return slices.ContainsFunc(paths, func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil || errors.Is(err, fs.ErrPermission)
	})
}

// serviceChecks returns a check for each service, one for the Node, and one for their versions; a single finding if
// there is no node.
func (p *patient) serviceChecks() []check {
	if !p.hasNode() {
		start := "quartet up --detach" + p.stateDirFlag()
		if p.stack != nil {
			start = p.stack.up()
		}
		return []check{one("node", func() machine.Finding {
			return machine.Ok("node", "none in %s: no socket and no pid file; %s starts one", p.layout.StateDir(), start)
		})}
	}
	var checks []check
	for _, s := range layout.Services() {
		checks = append(checks, check{name: string(s), run: func(ctx context.Context) []machine.Finding {
			if at, found := p.elsewhere(s); found {
				return p.checkElsewhere(ctx, at)
			}
			facts := p.askService(ctx, s)
			if s == layout.ConfigMux && errors.Is(facts.socketErr, fs.ErrNotExist) {
				return p.judgeNoConfigmux(ctx, facts)
			}
			return p.judgeService(facts)
		}})
	}
	return append(
		checks,
		check{
			name: "versions",
			run:  func(ctx context.Context) []machine.Finding { return judgeVersions(p.askVersions(ctx)) },
		},
		check{
			name: "node",
			run:  func(ctx context.Context) []machine.Finding { return []machine.Finding{judgeNode(p.askNode(ctx))} },
		},
	)
}

// serviceFacts are the facts about a service.
type serviceFacts struct {
	service layout.Service
	socket  string
	// socketErr is why the socket cannot be examined; mode and uid are those of the file.
	socketErr error
	mode      fs.FileMode
	uid       uint32
	// dirMode and dirUID are those of the service's own directory; 0 for a socket that is not in one.
	dirMode fs.FileMode
	dirUID  uint32
	// owner is the process that listens on it, or ownerErr why there is none.
	owner    rpc.Owner
	ownerErr error
	// impostor is set if the process runs as a user that may not be the service, or refuses the user of this one.
	impostor error
	// healthErr is why it does not serve.
	healthErr error
	// unhealthy is true if it reports that it is unhealthy. reasons are its sentences about that and about missing
	// dependencies, and waiting the names of these.
	unhealthy bool
	reasons   []string
	waiting   []string
	// notes are its sentences about problems of single pods.
	notes []string
}

// askService gathers the facts about one service.
func (p *patient) askService(ctx context.Context, service layout.Service) serviceFacts {
	facts := serviceFacts{service: service, socket: p.layout.Socket(service)}
	info, err := os.Lstat(facts.socket)
	if errors.Is(err, fs.ErrNotExist) { // a process of v0.1.0
		if earlier, earlierErr := os.Lstat(layout.EarlierSocket(facts.socket)); earlierErr == nil {
			facts.socket, info, err = layout.EarlierSocket(facts.socket), earlier, nil
		}
	}
	if err != nil {
		facts.socketErr = err
		return facts
	}
	facts.mode, facts.uid = info.Mode(), ownerOf(info)
	if dir, err := os.Stat(filepath.Dir(facts.socket)); err == nil && layout.InServiceDir(facts.socket) {
		facts.dirMode, facts.dirUID = dir.Mode(), ownerOf(dir)
	}
	if facts.owner, facts.ownerErr = rpc.ServerOf(p.layout.Address(service)); facts.ownerErr != nil {
		return facts
	}
	if facts.impostor = rpc.CheckServer(ctx, p.layout.Address(service)); facts.impostor != nil {
		return facts
	}
	conn, err := rpc.Dial(p.layout.Address(service))
	if err != nil {
		facts.ownerErr = err
		return facts
	}
	defer func() { _ = conn.Close() }() // nothing was written to it
	if facts.healthErr = target.Serving(ctx, conn); facts.healthErr != nil {
		return facts
	}
	facts.waiting = waiting(ctx, conn)
	askMore(ctx, conn, &facts)
	return facts
}

// waiting returns the missing dependencies in its health.
func waiting(ctx context.Context, conn grpc.ClientConnInterface) []string {
	list, err := grpc_health_v1.NewHealthClient(conn).List(ctx, &grpc_health_v1.HealthListRequest{})
	if err != nil {
		return nil // a service of an earlier version
	}
	var names []string
	for name, health := range list.GetStatuses() {
		if name != "" && health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// askMore calls the service's own RPC for its health.
func askMore(ctx context.Context, conn grpc.ClientConnInterface, facts *serviceFacts) {
	switch facts.service {
	case layout.ConfigMux:
		answer, err := configv1.NewConfigServiceClient(conn).ListSources(ctx, &configv1.ListSourcesRequest{})
		facts.healthErr = err
		for _, source := range answer.GetSources() {
			for _, e := range source.GetErrors() {
				facts.notes = append(facts.notes, join(e.GetPath(), e.GetPod(), e.GetField(), e.GetMessage()))
			}
		}
	case layout.PLEG:
		answer, err := lifecyclev1.NewLifecycleServiceClient(conn).GetHealth(ctx, &lifecyclev1.GetHealthRequest{})
		facts.healthErr, facts.unhealthy, facts.reasons = err, !answer.GetHealthy(), answer.GetReasons()
	case layout.SyncLoop:
		answer, err := enginev1.NewEngineServiceClient(conn).GetHealth(ctx, &enginev1.GetHealthRequest{})
		facts.healthErr, facts.unhealthy, facts.reasons = err, !answer.GetHealthy(), answer.GetReasons()
	case layout.NodeStatus:
		answer, err := nodev1.NewNodeServiceClient(conn).GetHealth(ctx, &nodev1.GetHealthRequest{})
		facts.healthErr, facts.unhealthy, facts.reasons = err, !answer.GetHealthy(), answer.GetReasons()
	}
}

// join joins the non-empty parts.
func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}

// callError returns the readable text of a call's error.
func callError(err error) string {
	if isSilent(err) {
		return "it takes connections and does not answer: it hangs, or is just ending"
	}
	var answer interface{ GRPCStatus() *status.Status }
	if errors.As(err, &answer) {
		return answer.GRPCStatus().Message()
	}
	return err.Error()
}

// isSilent reports whether the other end of a socket did not answer, so that the error is gRPC's and not the service's.
func isSilent(err error) bool {
	return status.Code(err) == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded) ||
		(status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "connection error"))
}

// judgeService evaluates the facts about a service.
func (p *patient) judgeService(facts serviceFacts) []machine.Finding {
	f := machine.Ok(
		string(facts.service),
		"serving at %s, pid %d of user %d",
		facts.socket,
		facts.owner.PID,
		facts.owner.UID,
	)
	fault := func(detail, fix string) []machine.Finding {
		return []machine.Finding{f.With(machine.Fault, detail, fix)}
	}
	switch {
	case errors.Is(facts.socketErr, fs.ErrNotExist):
		return fault(facts.socket+" is not there: it does not run", p.startService(facts.service))
	case errors.Is(facts.socketErr, fs.ErrPermission), errors.Is(facts.ownerErr, fs.ErrPermission):
		return fault(facts.socket+" may not be used by this user", "run the command as root")
	case facts.socketErr != nil:
		return fault(facts.socketErr.Error(), p.startService(facts.service))
	case facts.mode.Type() != fs.ModeSocket:
		return fault(facts.socket+" is not a socket", "move it away; "+p.startService(facts.service))
	case facts.ownerErr != nil:
		return fault("nobody listens on "+facts.socket+": it was killed", p.startService(facts.service))
	case errors.As(facts.impostor, new(*rpc.RefusedError)):
		return fault(facts.impostor.Error(), "run the command as root")
	case facts.impostor != nil:
		return fault(facts.impostor.Error(), "ps -p "+strconv.Itoa(facts.owner.PID)+" shows the process")
	case facts.healthErr != nil:
		return fault(fmt.Sprintf("pid %d has the socket %s: %s", facts.owner.PID, facts.socket, callError(facts.healthErr)),
			fmt.Sprintf("kill -9 %d: no pod stops for it, and it is started again", facts.owner.PID))
	}
	findings := p.judgeSocket(f, facts)
	reasons := facts.reasons
	if len(reasons) == 0 && len(facts.waiting) > 0 {
		reasons = []string{"it waits for " + strings.Join(facts.waiting, ", ")}
	}
	level := machine.Warning
	if facts.unhealthy {
		level = machine.Fault
		if len(reasons) == 0 {
			reasons = []string{"it says that it is not healthy, and not why"}
		}
	}
	for _, reason := range reasons {
		findings = append(findings, f.With(level, reason, "as the reason says; else "+p.logOf(facts.service)))
	}
	findings = append(findings, p.judgeNotes(f, facts)...)
	if len(findings) == 0 {
		return []machine.Finding{f}
	}
	return findings
}

// judgeNotes evaluates what a service says of single pods.
func (p *patient) judgeNotes(f machine.Finding, facts serviceFacts) (findings []machine.Finding) {
	for _, note := range facts.notes {
		findings = append(
			findings,
			f.With(machine.Warning, note, "mend it; quartet get sources"+p.stateDirFlag()+" shows when it is well"),
		)
	}
	return findings
}

// judgeSocket checks who may connect. The services refuse other users regardless of the mode.
func (p *patient) judgeSocket(f machine.Finding, facts serviceFacts) []machine.Finding {
	switch {
	case facts.mode.Perm() != socketMode:
		return []machine.Finding{
			f.With(machine.Warning, fmt.Sprintf("%s has mode %04o instead of %04o", facts.socket, facts.mode.Perm(), socketMode),
				fmt.Sprintf("chmod %04o %s", socketMode, facts.socket)),
		}
	case int(facts.uid) != facts.owner.UID:
		return []machine.Finding{
			f.With(
				machine.Warning,
				fmt.Sprintf("%s is user %d's, and who listens is user %d's", facts.socket, facts.uid, facts.owner.UID),
				fmt.Sprintf("chown %d %s", facts.owner.UID, facts.socket),
			),
		}
	case facts.dirMode.Perm()&othersWrite != 0, facts.dirUID != 0 && facts.dirUID != facts.uid:
		dir := filepath.Dir(facts.socket)
		return []machine.Finding{
			f.With(
				machine.Warning,
				fmt.Sprintf("others than user %d may make names in %s (user %d, mode %04o)",
					facts.uid, dir, facts.dirUID, facts.dirMode.Perm()),
				fmt.Sprintf("chown %d %s && chmod go-w %s", facts.uid, dir, dir),
			),
		}
	default:
		return nil
	}
}

// startService returns the advice for a service that does not run.
func (p *patient) startService(service layout.Service) string {
	if p.stack != nil {
		return p.stack.up(string(service)) + "; " + p.stack.logs(string(service)) + " says why it ended"
	}
	return fmt.Sprintf(
		"quartet up --detach%s, or systemctl start quartet-%s, whichever runs the node; %s",
		p.stateDirFlag(),
		service,
		p.logOf(service),
	)
}

// logOf returns where a service's log is.
func (p *patient) logOf(service layout.Service) string {
	if p.stack != nil {
		return p.stack.logs(string(service))
	}
	if _, err := os.Stat(p.layout.NodeLog()); err == nil {
		return fmt.Sprintf("its log is in %s", p.layout.NodeLog())
	}
	return fmt.Sprintf("its log is that of the unit ('journalctl -u quartet-%s') or of quartet node", service)
}

// askNode returns nil if the node is Ready.
func (p *patient) askNode(ctx context.Context) (err error) {
	conn, err := rpc.Dial(p.layout.Address(layout.NodeStatus))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return target.NodeReady(ctx, conn)
}

func judgeNode(err error) machine.Finding {
	f := machine.Ok("node", "the Node has the condition Ready")
	if isSilent(err) {
		return f.With(
			machine.Fault,
			"nodestatus, which says whether it is Ready, cannot be asked",
			"mend nodestatus, see above",
		)
	}
	if err != nil {
		return f.With(
			machine.Fault,
			err.Error(),
			"the lines above say what it waits for; quartet get node shows the conditions",
		)
	}
	return f
}
