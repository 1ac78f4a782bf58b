//! The form of requests' bodies, and of the answers that refuse a request: a text, with an HTTP status that stands for
//! the kind of the error.

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use headstart_block::{Error, ErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

/// The JSON body of every answer that refuses a request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(description = "Why something could not be done.")]
pub struct Failure {
    /// The error in words: the thing, the cause, and the remedy.
    pub error: String,
    /// The kind of the error, for programs: `corrupt`, `unsupported`, `invalid`, `not-found`, `conflict`, `no-space`,
    /// `read-only`, `absent`, `unavailable`, `denied`, `cancelled`, `no-device` (the kernel makes the disk no block
    /// device in the way that was asked for), `io`; later versions may have more. Absent in answers of earlier
    /// versions, and where no such request is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
}

/// An error as an HTTP answer: a [`Failure`] with the status code that fits the error's kind. These are 404 for
/// [`ErrorKind::NotFound`], 409 for `Conflict`, 422 for `Invalid` and `NoDevice`, 503 for `Unavailable`, 507 for
/// `NoSpace`, and 500 for all other kinds.
pub struct Refusal(pub Error);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.0.kind() {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Invalid | ErrorKind::NoDevice => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(Failure { error: self.0.to_string(), kind: Some(self.0.kind().word()) }))
            .into_response()
    }
}

/// An extractor of the JSON body of a request. A malformed body is refused with a [`Failure`], as other errors are.
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        match Json::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(refused(rejection.status(), &rejection.body_text())),
        }
    }
}

/// An extractor of the parameters in the path of a request. Malformed ones are answered with 404 (not found).
pub struct UrlPath<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for UrlPath<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(named)| Self(named)).map_err(|_| no_such(&parts.uri))
    }
}

/// Makes the answer that refuses a request with `status`: a [`Failure`] with the text `why`, to which a pointer to
/// the description of the interface is added. Use [`Refusal`] for an [`Error`].
pub fn refused(status: StatusCode, why: &str) -> Response {
    let error = format!("{why}; /openapi.json says what can be asked for");
    (status, Json(Failure { error, kind: None })).into_response()
}

/// The handler of requests whose path has no route: answers with 404 (not found).
pub async fn nothing(uri: Uri) -> Response {
    no_such(&uri)
}

fn no_such(uri: &Uri) -> Response {
    refused(StatusCode::NOT_FOUND, &format!("there is nothing at {}", uri.path()))
}

/// The handler of requests whose path exists, but not with this method, or only at the Unix socket: answers
/// with 405 (method not allowed).
pub async fn not_here(method: Method, uri: Uri) -> Response {
    let why = format!("{method} of {} is not for here, or over the Unix socket alone", uri.path());
    refused(StatusCode::METHOD_NOT_ALLOWED, &why)
}

/// The result of a request handler: the answer, or a [`Refusal`].
pub type ApiAnswer<T> = Result<T, Refusal>;
