package rpc

import (
	"context"
	"log/slog"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/rights"
)

// authorizer lets a caller call only the methods of its roles.
type authorizer struct {
	users rights.Users
	names rights.Names
	// nodes gives the role Observe to certificates of nodes.
	nodes  bool
	logger *slog.Logger
}

// check returns nil if the peer of a call may call a method, and otherwise an error for the peer.
func (a authorizer) check(ctx context.Context, method string) error {
	role := rights.Needed(method)
	if names, remote := PeerNames(ctx); remote {
		return a.checkNames(ctx, names, role, method)
	}
	if role == "" {
		return nil
	}
	uid, known := PeerUID(ctx)
	if known && a.users.Have(uid, os.Geteuid(), role) {
		return nil
	}
	a.logger.WarnContext(ctx, "refused a call: the user has not the role that it needs",
		"method", method, "role", string(role), "uid", uid)
	return status.Errorf(codes.PermissionDenied,
		"user %d may not call %s: that needs the role %q: name the user in %s of this service, see docs/security.md",
		uid, method, role, flagOf(role, "uids"))
}

// checkNames is check for a peer on another machine, which has the names of its certificate. One without any role may
// not even ask for the health.
func (a authorizer) checkNames(ctx context.Context, names []string, role rights.Role, method string) error {
	if a.names.Have(names, role) {
		return nil
	}
	if a.nodes && (role == rights.Observe || role == "") && PeerNode(ctx) != "" {
		return nil
	}
	if role == "" {
		role = rights.Observe
	}
	a.logger.WarnContext(ctx, "refused a call from the network: no name of the certificate has the role that it needs",
		"method", method, "role", string(role), "names", names)
	return status.Errorf(codes.PermissionDenied,
		"the certificate of %s may not call %s: that needs the role %q: name one of its names in %s of this service, "+
			"see docs/security.md", strings.Join(names, ", "), method, role, flagOf(role, "names"))
}

// flagOf returns the flag with the users or the names of a role.
func flagOf(role rights.Role, holders string) string {
	if role == rights.Secrets {
		return "--secret-" + holders
	}
	return "--" + string(role) + "-" + holders
}

func (a authorizer) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if err := a.check(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (a authorizer) stream(
	srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	if err := a.check(ss.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, ss)
}
